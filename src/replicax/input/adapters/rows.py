"""Batches of consecutive rows: what arrays and tables of examples have in common."""

from __future__ import annotations

import abc
from collections.abc import Iterator

from replicax.input.adapters.reading import Reading
from replicax.input.source import Batch, BatchPart, IndexedSource, PartOf


class RowsSource(IndexedSource):
    """Cuts rows into batches, in order, the same in every pass.

    Args:
        num_rows: How many examples there are.
        batch_size: The size of a global batch; the last one may be smaller.
    """

    def __init__(self, num_rows: int, *, batch_size: int) -> None:
        self._num_rows = num_rows
        self._batch_size = batch_size

    @abc.abstractmethod
    def _rows(self, start: int, stop: int) -> Batch:
        """The rows from `start` to before `stop`, which may be none."""

    @property
    def cardinality(self) -> int:
        """Known from the number of rows."""
        return -(-self._num_rows // self._batch_size)

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @property
    def _size_of_each(self) -> int | None:
        """The size of every batch, if they are all alike."""
        return self._batch_size if self._num_rows % self._batch_size == 0 else None

    def open(self, *, epoch: int, start: int) -> Iterator[Batch]:
        """Reads whole batches; `epoch` changes nothing."""
        return Reading(
            iter(range(start, self.cardinality)), lambda index: self._part(index, slice).batch
        )

    def open_parts(self, part_of: PartOf, *, epoch: int, start: int) -> Iterator[BatchPart]:
        """Reads parts of batches; `epoch` changes nothing."""
        return Reading(
            iter(range(start, self.cardinality)), lambda index: self._part(index, part_of)
        )

    def _part(self, index: int, part_of: PartOf) -> BatchPart:
        first = index * self._batch_size
        size = min(self._batch_size, self._num_rows - first)
        start, stop, _ = part_of(size).indices(size)
        return BatchPart(self._rows(first + start, first + stop), size)
