"""Closures that fail on a worker: the error comes once, and nothing runs when it does."""

import numpy as np
import pytest

import replicax as rx
from replicax.core.errors import OutOfRangeError


class DataError(Exception):
    """What a dataset of these tests raises."""


def failing_after(good):
    def dataset_fn():
        yield from (np.float32(1) for _ in range(good))
        raise DataError("the disk is gone")

    return dataset_fn


def test_an_error_comes_once_and_the_next_call_starts_afresh(new_strategy):
    strategy = new_strategy(num_workers=1)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = rx.Variable(0.0)
    iterator = iter(coordinator.create_per_worker_dataset(failing_after(3)))
    step = lambda it: total.assign_add(next(it)).value  # noqa: E731
    with pytest.raises(DataError, match="the disk is gone") as caught:
        values = [coordinator.schedule(step, args=(iterator,)) for _ in range(10)]
        coordinator.join()
    assert float(total) == 3
    assert coordinator.done()
    coordinator.join()
    assert coordinator.schedule(lambda: total.value).fetch() == 3
    del caught, values


def test_what_waits_is_cancelled_and_what_failed_has_the_error(new_strategy):
    strategy = new_strategy(num_workers=1)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(failing_after(1)))
    values = []
    with pytest.raises(DataError, match="the disk is gone"):
        for _ in range(50):
            values.append(coordinator.schedule(lambda it: next(it), args=(iterator,)))
        coordinator.join()
    assert values[0].fetch() == 1
    with pytest.raises(DataError, match="the disk is gone"):
        values[1].get()
    for value in values[2:]:
        with pytest.raises(rx.coordinator.ClosureCancelledError, match="failed before it"):
            value.get()


def test_an_error_in_dataset_fn_is_raised_where_the_dataset_is_made(coordinator):
    def dataset_fn():
        raise DataError("no such file")

    with pytest.raises(DataError, match="no such file"):
        coordinator.create_per_worker_dataset(dataset_fn)
    with pytest.raises(OutOfRangeError, match="the dataset of a worker is empty"):
        coordinator.create_per_worker_dataset(lambda: [])


def test_a_dataset_that_ends_says_whose(new_strategy):
    coordinator = rx.coordinator.ClusterCoordinator(new_strategy(num_workers=1))
    iterator = iter(coordinator.create_per_worker_dataset(lambda: [np.float32(1)]))
    coordinator.schedule(lambda it: next(it), args=(iterator,))
    with pytest.raises(OutOfRangeError, match="the dataset of worker 0 has ended in"):
        coordinator.schedule(lambda it: next(it), args=(iterator,))
        coordinator.join()


def test_a_value_that_is_not_there_in_time(new_strategy):
    coordinator = rx.coordinator.ClusterCoordinator(new_strategy(num_workers=1))
    with pytest.raises(TimeoutError, match=r"within 0\.0 seconds"):
        coordinator.schedule(lambda: 1).get(timeout=0.0)
    coordinator.join()


def test_few_closures_wait_when_the_queue_is_small(new_strategy):
    strategy = new_strategy(num_workers=1)
    coordinator = rx.coordinator.ClusterCoordinator(strategy, queue_size=2)
    with strategy.scope():
        total = rx.Variable(0)
    for _ in range(20):
        coordinator.schedule(lambda: total.assign_add(1).value)
        assert coordinator.stats().queued <= 2
    coordinator.join()
    assert int(total) == 20


def test_an_error_of_the_coordinator_itself_ends_the_wait(new_strategy, monkeypatch):
    coordinator = rx.coordinator.ClusterCoordinator(new_strategy(num_workers=1))

    def broken(*args):
        raise RuntimeError("no more figures")

    monkeypatch.setattr(coordinator._counting, "note_start", broken)
    value = coordinator.schedule(lambda: 1)
    with pytest.raises(RuntimeError, match="no more figures"):
        coordinator.join()
    with pytest.raises(RuntimeError, match="no more figures"):
        value.fetch()
