"""Plain Python as a source: functions, iterators that serve once, closing from elsewhere."""

import threading

import numpy as np
import pytest

from replicax.core.errors import BatchError, OneShotError
from replicax.input.adapters.reading import Reading
from replicax.input.adapters.table import source_of


def batches():
    yield np.arange(2)
    yield np.arange(3)


def values(reading):
    return [batch.tolist() for batch in reading]


@pytest.mark.parametrize("iterator", [batches, lambda: iter([[0, 1], [0, 1, 2]])])
def test_an_iterator_serves_one_pass_and_says_what_to_pass_instead(iterator):
    source = source_of(iterator())
    assert values(source.open(epoch=0, start=0)) == [[0, 1], [0, 1, 2]]
    with pytest.raises(OneShotError, match=r"one pass only.*Pass the function that makes it"):
        source.open(epoch=1, start=0)


def test_an_iterator_may_begin_late():
    assert values(source_of(batches()).open(epoch=0, start=1)) == [[0, 1, 2]]


def test_a_function_is_called_once_for_each_pass():
    calls = []

    def made():
        calls.append(len(calls))
        return batches()

    source = source_of(made)
    assert calls == []
    for _ in range(2):
        values(source.open(epoch=0, start=0))
    assert calls == [0, 1]


def test_a_function_with_defaults_and_a_bound_method_are_functions_without_arguments():
    class Data:
        def batches(self, size=2):
            return [np.arange(size)]

    assert values(source_of(Data().batches).open(epoch=0, start=0)) == [[0, 1]]


def test_a_function_that_returns_no_iterable_is_named():
    def nothing():
        pass

    with pytest.raises(
        BatchError, match=r"the function nothing, .*returned None; expected an iter"
    ):
        source_of(nothing).open(epoch=0, start=0)


@pytest.mark.parametrize("dataset", [[1, 2.5], lambda: [1, 2.5], iter([1, 2.5])])
def test_scalars_can_be_read_where_they_need_not_be_batches(dataset):
    elements = list(source_of(dataset).open_elements(epoch=0, start=0))
    assert elements == [1, 2.5]
    assert all(isinstance(element, np.ndarray) for element in elements)


def test_an_object_with_items_only_is_iterated_by_its_items():
    class Items:
        def __getitem__(self, index):
            if index == 2:
                raise IndexError(index)
            return np.full(2, index)

    assert values(source_of(Items()).open(epoch=0, start=0)) == [[0, 0], [1, 1]]


def test_closing_a_generator_runs_its_finally():
    ended = []

    def watched():
        try:
            yield from batches()
        finally:
            ended.append(True)

    reading = source_of(watched).open(epoch=0, start=0)
    next(reading)
    reading.close()
    assert ended == [True]


def test_a_pass_may_be_closed_while_another_thread_waits_in_it():
    entered, released = threading.Event(), threading.Event()
    ended, results = [], []

    def waiting():
        try:
            entered.set()
            released.wait(10)
            yield np.arange(2)
            yield np.arange(2)
        finally:
            ended.append(True)

    reading = source_of(waiting).open(epoch=0, start=0)
    thread = threading.Thread(target=lambda: results.extend(reading))
    thread.start()
    assert entered.wait(10)
    reading.close()
    released.set()
    thread.join(10)
    assert not thread.is_alive()
    assert len(results) <= 1
    assert ended == [True]


def test_an_error_of_a_pass_that_was_closed_meanwhile_is_the_end():
    class Source:
        def __init__(self):
            self.reading = None

        def __next__(self):
            self.reading.close()
            raise RuntimeError("used after it was closed")

    source = Source()
    source.reading = Reading(source, lambda x: x)
    assert next(source.reading, "end") == "end"
