"""Leaving a loop early leaves no thread and no open file."""

import gc
import os
import threading

import pytest

from replicax.data import Dataset, TextLineDataset, TFRecordDataset
from replicax.input.pipeline.readers import write_records


def grain_threads():
    return [t for t in threading.enumerate() if "grain" in t.name]


def assert_no_threads():
    for thread in grain_threads():
        thread.join(5.0)
    assert grain_threads() == []


def open_files():
    return {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}


PIPELINES = {
    "threads by index": lambda: Dataset.range(100).map(lambda x: x, num_parallel_calls=3),
    "prefetch by index": lambda: Dataset.range(100).batch(2).prefetch(4),
    "threads of a stream": lambda: (
        Dataset.range(100).filter(lambda x: True).map(lambda x: x, num_parallel_calls=3)
    ),
    "prefetch of a stream": lambda: Dataset.range(100).filter(lambda x: True).prefetch(4),
    "threads before a stream": lambda: (
        Dataset.range(100).map(lambda x: x, num_parallel_calls=3).filter(lambda x: True)
    ),
    "interleave": lambda: Dataset.range(9).interleave(
        lambda x: Dataset.range(50), cycle_length=3, num_parallel_calls=3
    ),
    "nested": lambda: (
        Dataset.range(100)
        .filter(lambda x: True)
        .prefetch(2)
        .batch(2)
        .repeat()
        .map(lambda x: x, num_parallel_calls=2)
        .prefetch(2)
    ),
}


@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES.keys())
def test_an_early_break_ends_the_threads(make):
    dataset = make()
    for _ in dataset:
        break
    del _
    gc.collect()
    assert_no_threads()


@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES.keys())
def test_closing_an_iterator_ends_the_threads(make):
    it = iter(make())
    next(it)
    it.close()
    it.close()
    assert list(it) == []
    assert_no_threads()


def test_an_error_in_a_function_ends_the_threads():
    def fails(x):
        raise KeyError("always")

    for dataset in (Dataset.range(9), Dataset.range(9).filter(lambda x: True)):
        with pytest.raises(KeyError, match="always"):
            list(dataset.map(fails, num_parallel_calls=2).prefetch(3))
    assert_no_threads()


@pytest.mark.parametrize("reads", [None, 3])
def test_a_pass_that_is_given_up_closes_its_files(tmp_path, reads):
    paths = [str(tmp_path / f"{i}.tfrecord") for i in range(3)]
    for path in paths:
        write_records(path, [b"x\n"] * 1000)
    for dataset in (
        TFRecordDataset(paths, num_parallel_reads=reads),
        TextLineDataset(paths, num_parallel_reads=reads).shuffle(5).prefetch(2),
        Dataset.from_tensor_slices(paths).interleave(TFRecordDataset, num_parallel_calls=2),
    ):
        it = iter(dataset)
        next(it)
        assert open_files() & set(paths)
        it.close()
        assert not open_files() & set(paths)
        _ = dataset.element_spec
        assert not open_files() & set(paths)
    assert_no_threads()


def test_a_generator_that_is_given_up_is_closed():
    closed = []

    def numbers():
        try:
            yield from range(100)
        finally:
            closed.append(True)

    it = iter(Dataset.from_generator(numbers).batch(2))
    next(it)
    del it
    gc.collect()
    assert closed == [True]


def test_many_iterators_leave_nothing_behind():
    dataset = Dataset.range(10).map(lambda x: x, num_parallel_calls=2).batch(2).prefetch(2)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(300):
        next(iter(dataset))
    gc.collect()
    assert_no_threads()
    assert len(os.listdir("/proc/self/fd")) <= before
