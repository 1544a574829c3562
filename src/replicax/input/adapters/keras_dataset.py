"""Keras' `PyDataset`: batches by number, and a call between passes.

The dataset is read in the thread that takes its batches. Its `workers` and
`use_multiprocessing` are instructions to ``fit`` and are left alone: Keras would fork.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

from replicax.input.adapters.host_source import Convert, HostSource
from replicax.input.adapters.reading import Reading
from replicax.input.source import INFINITE, Source


def source_of(dataset: Any) -> Source:
    """A source of the batches of a `keras.utils.PyDataset`."""
    return KerasSource(dataset)


class KerasSource(HostSource):
    """Reads a `keras.utils.PyDataset`.

    Args:
        dataset: The dataset, or anything with its methods.

    Example:
        >>> class Numbers:
        ...     num_batches = 3
        ...     def __getitem__(self, index):
        ...         return [index, index + 1]
        ...     def on_epoch_end(self):
        ...         pass
        >>> [batch.tolist() for batch in KerasSource(Numbers()).open(epoch=1, start=1)]
        [[1, 2], [2, 3]]
    """

    description = "a Keras PyDataset"
    advice = "__getitem__ of a PyDataset must return a batch, not an example."

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._epoch = 0
        self._lock = threading.Lock()

    @property
    def cardinality(self) -> int:
        """What ``num_batches`` says; None is without end."""
        num_batches = self._dataset.num_batches
        return INFINITE if num_batches is None else num_batches

    def _read(self, convert: Convert, *, epoch: int, start: int) -> Iterator[Any]:
        """Reads batch `start` and those after it.

        ``on_epoch_end`` is called once for every pass that `epoch` is ahead of the last
        one, so that a run resumed in pass 3 sees what pass 3 saw. Keras has no way back:
        an earlier pass sees the dataset as it now is.
        """
        with self._lock:
            while self._epoch < epoch:
                self._dataset.on_epoch_end()
                self._epoch += 1
        num_batches = self._dataset.num_batches
        indices = itertools.count(start) if num_batches is None else iter(range(start, num_batches))
        return Reading(indices, lambda index: convert(self._dataset[index]))
