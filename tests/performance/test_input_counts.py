"""How often a batch is copied on its way to the devices, counted by where its bytes are."""

import itertools

import jax
import numpy as np
import pytest

import replicax as rx
from replicax.backend import host_memory
from replicax.input.source import Source
from tests.performance.counting import mirrored, steady_calls

SHAPE = (256, 784)


class OwnedBatches(Source):
    """Batches that belong to nobody else, in memory that a device can adopt."""

    owns_batches = True

    def __init__(self):
        self.batches = []
        for i in range(4):
            batch = host_memory.aligned(SHAPE, np.dtype(np.float32))
            batch[...] = i
            self.batches.append(batch)

    def open(self, *, epoch, start):
        del epoch, start
        return itertools.cycle(self.batches)


class UsersBatches:
    """Batches of an array that the user keeps."""

    def __init__(self):
        self.rows = np.ones((4 * SHAPE[0], SHAPE[1]), np.float32)

    def __iter__(self):
        for start in itertools.cycle(range(0, len(self.rows), SHAPE[0])):
            yield self.rows[start : start + SHAPE[0]]


def addresses(value):
    """Where the parts of a per-replica value begin."""
    return [shard.data.unsafe_buffer_pointer() for shard in value._as_packed().addressable_shards]


def test_a_batch_that_belongs_to_nobody_is_not_copied_at_all():
    strategy, source = mirrored(2), OwnedBatches()
    value = next(iter(strategy.distribute_dataset(source)))
    start = source.batches[0].ctypes.data
    assert addresses(value) == [start, start + source.batches[0].nbytes // 2]


@pytest.mark.parametrize("num_replicas", [2, 4])
def test_a_batch_of_the_user_is_copied_once_for_all_replicas(num_replicas):
    strategy, users = mirrored(num_replicas), UsersBatches()
    value = next(iter(strategy.distribute_dataset(users)))
    found = addresses(value)
    inside = range(users.rows.ctypes.data, users.rows.ctypes.data + users.rows.nbytes)
    assert not any(address in inside for address in found)
    # One copy for all: the parts follow one another, and the devices have adopted it.
    size = users.rows[: SHAPE[0]].nbytes // num_replicas
    assert found == [found[0] + i * size for i in range(num_replicas)]


def test_a_step_copies_nothing_to_the_devices():
    strategy = mirrored(2)
    with strategy.scope():
        w = rx.Variable(np.ones(SHAPE[1], np.float32))

    @rx.function
    def step(x):
        loss = strategy.run(
            lambda x: rx.get_replica_context().all_reduce("SUM", (x @ w).sum()), (x,)
        )
        w.assign(w * 0.5)
        return loss

    iterator = iter(strategy.distribute_dataset(UsersBatches()))
    step(next(iterator))
    batches = [next(iterator) for _ in range(5)]
    with jax.transfer_guard_host_to_device("disallow_explicit"):
        for batch in batches:
            step(batch)


def test_the_guard_would_see_a_copy():
    with (
        jax.transfer_guard_host_to_device("disallow_explicit"),
        pytest.raises(Exception, match="host-to-device transfer"),
    ):
        jax.device_put(np.ones(3))


MAX_CALLS_PER_BATCH = 80
MAX_CALLS_PER_LEAF = 50


def slices(**others):
    """A pipeline over arrays in memory, of one leaf or more."""
    rows = np.ones((4 * SHAPE[0], SHAPE[1]), np.float32)
    tensors = {"x": rows, **others} if others else rows
    return rx.data.Dataset.from_tensor_slices(tensors).batch(SHAPE[0]).repeat()


@pytest.mark.parametrize("num_replicas", [1, 2, 8])
@pytest.mark.parametrize("make", [UsersBatches, slices])
def test_a_batch_makes_few_calls_for_any_number_of_replicas(make, num_replicas):
    iterator = iter(mirrored(num_replicas).distribute_dataset(make()))
    assert steady_calls(lambda: next(iterator)) <= MAX_CALLS_PER_BATCH


def test_another_leaf_makes_few_more_calls():
    labels = np.ones(4 * SHAPE[0], np.float32)
    iterator = iter(mirrored(2).distribute_dataset(slices(y=labels)))
    assert steady_calls(lambda: next(iterator)) <= MAX_CALLS_PER_BATCH + MAX_CALLS_PER_LEAF


@pytest.mark.parametrize("num_replicas", [2, 4])
def test_rows_in_order_are_copied_when_the_dataset_is_made_and_never_again(num_replicas):
    iterator = iter(mirrored(num_replicas).distribute_dataset(slices()))
    found = [addresses(next(iterator)) for _ in range(8)]
    assert found[:4] == found[4:]  # the second pass
    size = SHAPE[0] * SHAPE[1] * 4 // num_replicas
    together = [address for batch in found[:4] for address in batch]
    assert together == [together[0] + i * size for i in range(4 * num_replicas)]


def test_shuffled_rows_are_copied_once_for_all_replicas():
    data = rx.data.Dataset.from_tensor_slices(np.ones((1024, SHAPE[1]), np.float32))
    iterator = iter(mirrored(4).distribute_dataset(data.shuffle(1024).batch(SHAPE[0])))
    size = SHAPE[0] * SHAPE[1]
    for batch in iterator:
        found = addresses(batch)
        assert found == [found[0] + i * size for i in range(4)]
