"""Gives our datasets, distributed or not, to `fit`, `evaluate` and `predict`.

Everything else that Keras takes, Keras reads itself: its batches are divided among the replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from replicax.input.dataset import DistributedDataset
from replicax.input.pipeline.dataset import Dataset
from replicax.integrations.keras import ownership
from replicax.values.distributed import PerReplica


class DatasetAdapter:
    """What Keras asks of a source of batches."""

    batch_size = None
    has_partial_batch = None
    partial_batch_size = None

    def __init__(self, dataset: Dataset | DistributedDataset) -> None:
        """Reads from `dataset`, from its beginning in every epoch."""
        self._dataset = dataset
        self._is_divided = isinstance(dataset, DistributedDataset)

    @property
    def num_batches(self) -> int | None:
        """How many global batches an epoch has, where that is known."""
        try:
            return len(self._dataset)
        except TypeError:
            return None

    def get_jax_iterator(self) -> Iterator[Any]:
        """One epoch of batches."""
        for batch in self._dataset:
            if self._is_divided:
                batch = jax.tree.map(GlobalBatch, batch, is_leaf=_is_divided)
            yield batch

    def on_epoch_begin(self) -> None:
        """Nothing to do."""

    def on_epoch_end(self) -> None:
        """Nothing to do."""


class GlobalBatch:
    """One leaf of a divided batch, which Keras asks for its shape when it builds a model."""

    def __init__(self, value: Any) -> None:
        """The leaf `value`: a per-replica value, or with one replica an array."""
        self.value = value

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole."""
        if not isinstance(self.value, PerReplica):
            return tuple(self.value.shape)
        shapes = self.value.shapes
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the components."""
        return self.value.dtype


def _is_divided(leaf: Any) -> bool:
    return isinstance(leaf, PerReplica)


def get_data_adapter(original: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
    """What Keras reads its batches from.

    A `Dataset` is distributed as its options say, so a worker reads its own share of it only.
    """
    if not isinstance(x, (Dataset, DistributedDataset)):
        return original(x, *args, **kwargs)
    names = ("y", "sample_weight", "class_weight")
    given = [name for name in names if kwargs.get(name) is not None]
    if given:
        raise ValueError(
            f"{' and '.join(given)} cannot be given beside a {type(x).__name__}. Let its elements "
            "be (x, y) or (x, y, sample_weight)."
        )
    strategy = ownership.strategy_in_force()
    if strategy is not None and isinstance(x, Dataset):
        return DatasetAdapter(strategy.distribute_dataset(x))
    return DatasetAdapter(x)
