"""One pass over a source: an iterator that can be closed at any time, from any thread."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


class Reading(Iterator[Any]):
    """What `Source.open` returns.

    After `close`, or once its elements have ended, it holds nothing of the library that
    is read, and every further `next` is the end.

    Args:
        elements: The library's own iterator.
        convert: What is done with each of its elements.
        skip: How many elements are passed over first, unconverted.
        keep: Which elements count; the others are passed over as if they were not there.

    Example:
        >>> reading = Reading(iter([1, 2, 3]), lambda x: 10 * x, skip=1)
        >>> next(reading)
        20
        >>> reading.close()
        >>> list(reading)
        []
    """

    def __init__(
        self,
        elements: Iterator[Any],
        convert: Callable[[Any], Any],
        *,
        skip: int = 0,
        keep: Callable[[Any], bool] | None = None,
    ) -> None:
        self._elements: Iterator[Any] | None = elements
        self._convert = convert
        self._skip = skip
        self._keep = keep

    def __iter__(self) -> Reading:
        return self

    def __next__(self) -> Any:
        elements = self._elements
        if elements is None:
            raise StopIteration
        try:
            return self._convert(self._next_kept(elements))
        except StopIteration:
            self.close()
            raise
        except Exception:
            if self._elements is None:  # closed by another thread while it was reading
                raise StopIteration from None
            self.close()
            raise

    def _next_kept(self, elements: Iterator[Any]) -> Any:
        while True:
            element = next(elements)
            if self._keep is not None and not self._keep(element):
                continue
            if self._skip:
                self._skip -= 1
                continue
            return element

    def close(self) -> None:
        """Lets go of the library's iterator, ending its threads and processes."""
        elements, self._elements = self._elements, None
        close = getattr(elements, "close", None)
        if close is not None:
            # A generator that another thread is inside of refuses; it ends when that thread does.
            with contextlib.suppress(ValueError):
                close()

    def __del__(self) -> None:
        self.close()
