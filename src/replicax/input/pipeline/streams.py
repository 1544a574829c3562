"""Makes a Grain `IterDataset` of a Python iterator, and the iterators Grain does not have.

Grain repeats a stream in one order for ever, reads TFRecords without their checksums, and
interleaves with threads and blocks of one; those are generator functions here and in
`readers`. Everything else of a stream is Grain's own.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from replicax.core.extras import require_extra

Start = Callable[[], Iterator[Any]]
"""Starts a pass."""


def require_grain() -> Any:
    """The library Grain.

    Raises:
        ImportError: If it is not installed; says how to get it.
    """
    user = "a data.Dataset that reads a stream, or ahead in threads,"
    require_extra("grain", user=user, extra="data")
    return importlib.import_module("grain")


def stream(start: Start) -> Any:
    """A `grain.IterDataset` that reads what `start` gives, anew for every pass.

    Its state is the number of elements read; going to a state reads up to there.
    """
    return _stream_class()(start)


@functools.cache
def _stream_class() -> type:
    grain = require_grain()

    class StreamDatasetIterator(grain.DatasetIterator):
        """Counts what it reads."""

        def __init__(self, start: Start) -> None:
            super().__init__()
            self._start = start
            self._elements: Iterator[Any] | None = None
            self._position = 0

        def __next__(self) -> Any:
            self._assert_not_closed()
            if self._elements is None:
                self._elements = self._start()
            element = next(self._elements)
            self._position += 1
            return element

        def get_state(self) -> dict[str, int]:
            return {"position": self._position}

        def set_state(self, state: dict[str, int]) -> None:
            self._let_go()
            self._elements = self._start()
            self._position = state["position"]
            for _ in itertools.islice(self._elements, self._position):
                pass

        def close(self) -> None:
            super().close()
            self._let_go()

        def _let_go(self) -> None:
            elements, self._elements = getattr(self, "_elements", None), None
            close = getattr(elements, "close", None)
            if close is not None:
                close()

    class StreamIterDataset(grain.IterDataset):
        """Starts an iterator for every pass."""

        def __init__(self, start: Start) -> None:
            super().__init__()
            self._start = start

        def __iter__(self) -> StreamDatasetIterator:
            return StreamDatasetIterator(self._start)

    return StreamIterDataset


def every(datasets: Iterable[Any]) -> Iterator[Any]:
    """The elements of one Grain dataset after another."""
    for dataset in datasets:
        with contextlib.closing(iter(dataset)) as elements:
            yield from elements


def repeated(dataset_of: Callable[[int], Any], passes: Iterable[int]) -> Iterator[Any]:
    """The elements of pass after pass, until one has none."""
    for index in passes:
        is_empty = True
        with contextlib.closing(iter(dataset_of(index))) as elements:
            for element in elements:
                is_empty = False
                yield element
        if is_empty:
            return


def picked(dataset: Any, start: int, step: int = 1) -> Iterator[Any]:
    """The elements from `start` on, every `step`-th."""
    with contextlib.closing(iter(dataset)) as elements:
        yield from itertools.islice(elements, start, None, step)


def flattened(dataset: Any, rows_of: Callable[[Any], list[Any]]) -> Iterator[Any]:
    """The rows of every element."""
    with contextlib.closing(iter(dataset)) as elements:
        for element in elements:
            yield from rows_of(element)


def interleaved(
    dataset: Any, dataset_of: Callable[[Any], Any], *, cycle_length: int, block_length: int
) -> Iterator[Any]:
    """Takes turns among the datasets made of the first elements, then of those after them.

    Args:
        dataset: The Grain dataset of the elements.
        dataset_of: The Grain dataset that is read for an element.
        cycle_length: How many of them are open at a time.
        block_length: How many of their elements are taken in a turn.
    """
    with contextlib.ExitStack() as stack:
        elements = stack.enter_context(contextlib.closing(iter(dataset)))
        slots: list[Any] = [None] * cycle_length
        stack.callback(lambda: [slot.close() for slot in slots if slot is not None])
        has_more = True
        while has_more or any(slot is not None for slot in slots):
            for index in range(cycle_length):
                if slots[index] is None:
                    element = next(elements, _END) if has_more else _END
                    has_more = element is not _END
                    if not has_more:
                        continue
                    slots[index] = iter(dataset_of(element))
                # A dataset that ends leaves its turn, and its place to the next round.
                for _ in range(block_length):
                    item = next(slots[index], _END)
                    if item is _END:
                        slots[index].close()
                        slots[index] = None
                        break
                    yield item


_END = object()
