"""What sources share that take a library's elements one after another."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from typing import Any

from replicax.core.errors import BatchError
from replicax.input.adapters.host_batch import host_batch, host_element
from replicax.input.source import Batch, Source

Convert = Callable[[Any], Any]


class HostSource(Source):
    """A source that has one way to read, whether its elements have to be batches or not.

    Attributes:
        advice: How to batch the examples with this library, a full sentence.
    """

    advice: str = ""

    @abc.abstractmethod
    def _read(self, convert: Convert, *, epoch: int, start: int) -> Iterator[Any]:
        """Reads one pass and converts each element."""

    def _why_unbatched(self) -> str | None:
        """What makes it plain, before reading, that the elements are no batches."""
        return None

    def open(self, *, epoch: int, start: int) -> Iterator[Batch]:
        """Reads the batches of one pass."""
        self._require_batches()
        return self._read(self._batch, epoch=epoch, start=start)

    def open_elements(self, *, epoch: int, start: int) -> Iterator[Any]:
        """Reads the elements of one pass, batches or not."""
        return self._read(self._element, epoch=epoch, start=start)

    def _require_batches(self) -> None:
        reason = self._why_unbatched()
        if reason is not None:
            raise BatchError(f"{reason} {self.advice}")

    def _batch(self, element: Any) -> Batch:
        return host_batch(element, description=self.description, advice=self.advice)

    def _element(self, element: Any) -> Any:
        return host_element(element, description=self.description)
