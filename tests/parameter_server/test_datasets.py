"""Datasets of workers."""

import numpy as np
import pytest

import replicax as rx
from replicax.core.errors import ContextError


def test_each_worker_reads_its_own_dataset(strategy, coordinator):
    def dataset_fn():
        worker = rx.coordinator.experimental_get_current_worker_index()
        return rx.data.Dataset.from_tensor_slices(np.full(40, worker)).batch(4)

    dataset = coordinator.create_per_worker_dataset(dataset_fn)
    assert dataset.element_spec.shape == (4,)
    iterator = iter(dataset)

    def step(iterator):
        return next(iterator), rx.coordinator.experimental_get_current_worker_index()

    for value in [coordinator.schedule(step, args=(iterator,)) for _ in range(8)]:
        batch, worker = value.fetch()
        assert batch.tolist() == [worker] * 4


def test_elements_are_nests_and_a_closure_may_take_several(new_strategy):
    coordinator = rx.coordinator.ClusterCoordinator(new_strategy(num_workers=1))
    elements = [{"x": np.full(2, i, np.float32), "y": np.int32(i)} for i in range(6)]
    iterator = iter(coordinator.create_per_worker_dataset(lambda: elements))

    def step():
        first, second = next(iterator), next(iterator)
        return first["x"].sum() + second["y"]

    values = [coordinator.schedule(step) for _ in range(3)]
    assert [value.fetch() for value in values] == [1, 2 * 2 + 3, 2 * 4 + 5]


def test_every_iterator_starts_anew(new_strategy):
    coordinator = rx.coordinator.ClusterCoordinator(new_strategy(num_workers=1))
    dataset = coordinator.create_per_worker_dataset(lambda: [np.float32(i) for i in range(3)])
    for _ in range(2):
        iterator = iter(dataset)
        values = [coordinator.schedule(lambda it: next(it), args=(iterator,)) for _ in range(3)]
        assert [value.fetch() for value in values] == [0, 1, 2]


def test_a_short_last_batch_gets_a_program_of_its_own(new_strategy):
    strategy = new_strategy(num_workers=1)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = rx.Variable(0.0)
    batches = [np.ones(4, np.float32), np.ones(4, np.float32), np.ones(1, np.float32)]
    dataset = coordinator.create_per_worker_dataset(lambda: batches)

    @rx.function
    def step(iterator):
        batch = next(iterator)
        total.assign_add(batch.sum())
        return batch.shape[0]

    for _ in range(2):
        iterator = iter(dataset)
        values = [coordinator.schedule(step, args=(iterator,)) for _ in range(3)]
        assert [value.fetch() for value in values] == [4, 4, 1]
    assert float(total) == 18


def test_next_outside_of_a_closure_says_where_it_belongs(coordinator):
    iterator = iter(coordinator.create_per_worker_dataset(lambda: [1.0]))
    with pytest.raises(ContextError, match="next of a per-worker iterator under"):
        next(iterator)
    with pytest.raises(TypeError, match="needs a function that makes the dataset"):
        coordinator.create_per_worker_dataset([1.0])
