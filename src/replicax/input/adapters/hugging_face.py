"""Hugging Face `datasets`: a table of examples with a batch size, or a stream of batches."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from replicax.core import nest
from replicax.core.errors import BatchError
from replicax.input.adapters.host_batch import host_batch, part_of_batch, spec_of
from replicax.input.adapters.host_source import Convert, HostSource
from replicax.input.adapters.reading import Reading
from replicax.input.adapters.rows import RowsSource
from replicax.input.source import Batch, BatchPart, PartOf, Source

_ADVICE = "Batch the examples: pass batch_size=, or dataset.batch(batch_size=...) for a stream."


def source_of(dataset: Any, *, batch_size: int | None = None) -> Source:
    """A source of the batches of a `datasets.Dataset` or `datasets.IterableDataset`.

    Args:
        dataset: The examples; a stream may consist of batches already.
        batch_size: The size of a global batch.

    Raises:
        BatchError: If a `datasets.Dataset` comes without a batch size, or it is a dict of splits.
    """
    names = {base.__name__ for base in type(dataset).__mro__}
    if names & {"DatasetDict", "IterableDatasetDict"}:
        raise BatchError(
            f"a Hugging Face {type(dataset).__name__} holds several datasets, {list(dataset)}. "
            f"Distribute one of them, such as dataset[{next(iter(dataset), 'train')!r}]."
        )
    if "IterableDataset" in names:
        return HuggingFaceStream(dataset if batch_size is None else dataset.batch(batch_size))
    if batch_size is None:
        raise BatchError(
            f"a Hugging Face Dataset of {len(dataset)} rows was given without the size of a batch. "
            "Pass batch_size=. If its rows are batches, made by dataset.batch(n), pass "
            "dataset.to_iterable_dataset()."
        )
    return HuggingFaceTable(dataset, batch_size=batch_size)


def _as_numpy(dataset: Any, format_type: str | None) -> Any:
    """The dataset giving arrays, unless the user has chosen a format."""
    return dataset if format_type is not None else dataset.with_format("numpy")


class HuggingFaceTable(RowsSource):
    """Reads consecutive rows of a `datasets.Dataset`.

    Rows that a transform of the user's makes (``set_transform``) are read a whole batch
    at a time: it may mix the examples of a batch.

    Args:
        dataset: The dataset.
        batch_size: The size of a global batch; the last one may be smaller.

    Example:
        >>> import datasets
        >>> table = HuggingFaceTable(datasets.Dataset.from_dict({"x": [1, 2, 3]}), batch_size=2)
        >>> [batch["x"].tolist() for batch in table.open(epoch=0, start=0)]
        [[1, 2], [3]]
    """

    description = "a Hugging Face Dataset"

    def __init__(self, dataset: Any, *, batch_size: int) -> None:
        super().__init__(len(dataset), batch_size=batch_size)
        chosen = dataset.format
        self._reads_whole = chosen["type"] == "custom"
        if chosen["type"] is None:
            dataset = dataset.with_format("numpy", columns=chosen["columns"])
        self._dataset = dataset
        self._none: Batch = None

    @property
    def element_spec(self) -> Any | None:
        """Known from the first row, which is read when this is first asked."""
        return (
            spec_of(self._rows(0, 0), num_examples=self._size_of_each) if self._num_rows else None
        )

    def _rows(self, start: int, stop: int) -> Batch:
        if start < stop:
            rows = self._dataset[start:stop]
            return host_batch(rows, description=self.description, advice=_ADVICE)
        if self._none is None:  # no rows have no dtypes, so they are taken from the first one
            self._none = nest.map_leaves(lambda leaf: leaf[:0], self._rows(0, 1))
        return self._none

    def _part(self, index: int, part_of: PartOf) -> BatchPart:
        if not self._reads_whole:
            return super()._part(index, part_of)
        whole = super()._part(index, slice).batch
        return part_of_batch(whole, part_of, description=self.description)


class HuggingFaceStream(HostSource):
    """Reads a `datasets.IterableDataset` whose elements are batches.

    Args:
        dataset: The stream.

    Example:
        >>> import datasets
        >>> rows = datasets.Dataset.from_dict({"x": [1, 2, 3]}).to_iterable_dataset()
        >>> stream = HuggingFaceStream(rows.batch(2))
        >>> [batch["x"].tolist() for batch in stream.open(epoch=0, start=0)]
        [[1, 2], [3]]
    """

    description = "a Hugging Face IterableDataset"
    advice = _ADVICE

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def _read(self, convert: Convert, *, epoch: int, start: int) -> Iterator[Any]:
        """Reads a copy of the stream, set to `epoch`, which is how it shuffles anew."""
        dataset = copy.deepcopy(self._dataset)  # a stream keeps its position in itself
        dataset = _as_numpy(dataset, _format_of_stream(dataset))
        dataset = dataset.skip(start) if start else dataset
        dataset.set_epoch(epoch)
        return Reading(iter(dataset), convert)


def _format_of_stream(dataset: Any) -> str | None:
    formatting = dataset._formatting
    return None if formatting is None else formatting.format_type
