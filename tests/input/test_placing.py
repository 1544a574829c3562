"""Where batches end up, and that they share no memory with their source."""

import jax
import numpy as np
import pytest

import replicax as rx
from replicax.input.placing import Placer
from replicax.input.steps import HostStep, Share, divided
from tests.input.pipelines import Stream, values_of


@pytest.fixture(params=[1, 2, 3])
def strategy(request):
    return rx.MirroredStrategy([f"CPU:{i + 1}" for i in range(request.param)])


def aligned(shape, dtype=np.float32):
    """An array that JAX on CPU would adopt without a copy."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    offset = -raw.ctypes.data % 64
    return raw[offset : offset + size].view(dtype).reshape(shape)


class Reusing(Stream):
    """Gives the same buffer again and again, with other contents."""

    def __init__(self, buffer, **known):
        super().__init__([], **known)
        self.buffer = buffer

    def open(self, *, epoch, start):
        for number in range(start, 3):
            self.buffer[:] = number
            yield self.buffer


@pytest.mark.parametrize("rows", [24, 23, 1])
@pytest.mark.parametrize("to_device", [True, False])
def test_a_source_may_write_to_its_buffer_again(strategy, rows, to_device):
    options = rx.InputOptions(experimental_fetch_to_device=to_device)
    values = list(strategy.distribute_dataset(Reusing(aligned((rows, 16))), options))
    totals = [float(strategy.reduce("SUM", value, axis=(0, 1))) for value in values]
    assert totals == [0.0, rows * 16.0, rows * 32.0]


def test_an_owned_buffer_is_adopted_without_a_copy():
    one = rx.MirroredStrategy(["CPU:0"])
    buffer = aligned((24, 16))
    (first, *_) = one.distribute_dataset(Reusing(buffer, owns_batches=True))
    assert first.unsafe_buffer_pointer() == buffer.ctypes.data
    (first, *_) = one.distribute_dataset(Reusing(buffer))
    assert first.unsafe_buffer_pointer() != buffer.ctypes.data


def test_a_copy_is_made_once_in_a_buffer_that_the_device_adopts(strategy):
    (value,) = strategy.distribute_dataset(Stream([np.ones((24, 16), np.float32)]))
    placed = value._as_packed() if isinstance(value, rx.PerReplica) else value
    addresses = [shard.data.unsafe_buffer_pointer() for shard in placed.addressable_shards]
    # Shards that lie in one buffer, one after the other, were not copied one by one.
    size = placed.nbytes // len(addresses)
    assert addresses == [addresses[0] + size * i for i in range(len(addresses))]


@pytest.mark.parametrize("rows", [6, 5, 1, 0])
def test_each_part_is_on_the_device_of_its_replica(strategy, rows):
    (value,) = strategy.distribute_dataset(Stream([np.ones((rows, 2), np.float32)]))
    parts = strategy.experimental_local_results(value)
    devices = strategy.extended.mesh.devices
    assert [part.devices() for part in parts] == [{device} for device in devices]
    assert sum(part.shape[0] for part in parts) == rows


def test_batches_stay_on_the_host_if_asked(strategy):
    batch = {"x": np.arange(6), "y": np.ones((6, 2))}
    host = rx.InputOptions(experimental_fetch_to_device=False)
    for options, kind in ((host, np.ndarray), (None, jax.Array), (rx.InputOptions(), jax.Array)):
        (value,) = strategy.distribute_dataset(Stream([batch]), options)
        for leaf, dtype in ((value["x"], np.int32), (value["y"], np.float32)):
            parts = strategy.experimental_local_results(leaf)
            assert all(isinstance(part, kind) for part in parts)
            assert {part.dtype for part in parts} == {np.dtype(dtype)}


def test_batches_on_the_host_run_as_others_do(strategy):
    host = rx.InputOptions(experimental_fetch_to_device=False)
    dataset = strategy.distribute_dataset(Stream([np.arange(7.0)] * 2), host)
    step = rx.function(lambda x: x.sum())
    for value in dataset:
        total = strategy.reduce("SUM", strategy.run(step, args=(value,)), axis=None)
        assert float(total) == 21.0


def test_a_jax_array_may_be_a_batch(strategy):
    (value,) = strategy.distribute_dataset(Stream([jax.numpy.arange(5)]))
    assert np.concatenate(values_of(value)).tolist() == [0, 1, 2, 3, 4]


def test_one_type_of_value_is_one_program():
    two = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    step = rx.function(lambda x: x.sum())
    for value in two.distribute_dataset(Stream([np.ones((4, 2), np.float32)] * 4)):
        two.run(step, args=(value,))
    assert step.trace_count == 1


def test_a_share_knows_its_parts():
    whole = divided(np.arange(5), (2, 2, 2, 1), range(1, 3))
    assert whole.local_shapes == ((2,), (2,))
    assert [part.tolist() for part in divided(np.arange(3), (2, 1), range(2)).local_parts()] == [
        [0, 1],
        [2],
    ]


def test_scalars_are_stacked():
    two = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    share = Share(((), ()), range(2), parts=(np.float32(1), np.float32(2)))
    structure = jax.tree_util.tree_structure(0)
    value = Placer(two.extended.mesh, owns_batches=False)(HostStep(structure, [share]))
    assert [(part.shape, float(part)) for part in value.values] == [((), 1.0), ((), 2.0)]
    assert float(two.reduce("SUM", value, axis=None)) == 3.0


def test_many_shapes_do_not_pile_up():
    two = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = two.distribute_dataset(Stream([np.ones(2 * i, np.float32) for i in range(1, 100)]))
    assert [value.shapes[0][0] for value in dataset] == list(range(1, 100))
    assert len(dataset._place._layouts) <= 64
