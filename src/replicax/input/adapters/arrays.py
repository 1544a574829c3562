"""Arrays in memory: an array, or a nest of them, cut into batches of consecutive examples."""

from __future__ import annotations

from typing import Any

from replicax.core import nest
from replicax.core.errors import BatchError
from replicax.input.adapters.host_batch import host_batch, num_examples, spec_of
from replicax.input.adapters.rows import RowsSource
from replicax.input.source import Batch, IndexedSource

_ADVICE = "Dim 0 must count the examples."


def source_of(arrays: Any, *, batch_size: int | None = None) -> IndexedSource:
    """A source of consecutive batches of `arrays`.

    Args:
        arrays: An array or a nest of arrays with the same number of examples in dim 0.
        batch_size: The size of a global batch.

    Raises:
        BatchError: If there is no batch size, or a leaf is no array of examples.
    """
    host = host_batch(arrays, description="the dataset given as arrays", advice=_ADVICE)
    if batch_size is None:
        shapes = nest.map_leaves(lambda leaf: leaf.shape, host)
        raise BatchError(
            f"arrays of the shapes {shapes} were given as a dataset, without the size of a batch. "
            "Pass batch_size=, or a list of batches."
        )
    return ArraySource(host, batch_size=batch_size)


class ArraySource(RowsSource):
    """Batches that are slices of arrays.

    Args:
        arrays: A nest of NumPy arrays.
        batch_size: The size of a global batch; the last one may be smaller.

    Example:
        >>> import numpy as np
        >>> source = ArraySource({"x": np.arange(5)}, batch_size=2)
        >>> [batch["x"] for batch in source.open(epoch=0, start=1)]
        [array([2, 3]), array([4])]
    """

    description = "a dataset of arrays"

    def __init__(self, arrays: Any, *, batch_size: int) -> None:
        super().__init__(num_examples(arrays, description=self.description), batch_size=batch_size)
        self._arrays = arrays

    @property
    def element_spec(self) -> Any:
        return spec_of(self._arrays, num_examples=self._size_of_each)

    def _rows(self, start: int, stop: int) -> Batch:
        return nest.map_leaves(lambda leaf: leaf[start:stop], self._arrays)
