"""Finds the adapter for a dataset, importing no library that is not there.

A class is known by the root of its module and its name, anywhere among the classes it
derives from. The order of the rows is their priority: a stream of Hugging Face is also
a dataset of torch as soon as torch is installed. What no row knows is an array, a nest
of arrays, or plain Python.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

import jax

from replicax.core.errors import BatchError
from replicax.input.adapters.host_batch import is_list_of_numbers
from replicax.input.source import Source


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A class of datasets and the module that reads them.

    Attributes:
        root: The first name of the module of the class.
        name: The name of the class.
        adapter: A module of this package, with a function ``source_of``.
        takes_batch_size: Whether examples can be batched on the way.

    Example:
        >>> Row("grain", "MapDataset", "grain_map").matches(int)
        False
    """

    root: str
    name: str
    adapter: str
    takes_batch_size: bool = False

    def matches(self, kind: type) -> bool:
        """Whether `kind` is the class of this row, or derives from it."""
        return any(
            base.__name__ == self.name and base.__module__.partition(".")[0] == self.root
            for base in kind.__mro__
        )


ROWS = (
    Row("replicax", "Dataset", "pipeline"),
    Row("grain", "MapDataset", "grain_map"),
    Row("grain", "IterDataset", "grain_iter"),
    Row("grain", "DataLoader", "grain_loader"),
    Row("datasets", "Dataset", "hugging_face", takes_batch_size=True),
    Row("datasets", "IterableDataset", "hugging_face", takes_batch_size=True),
    Row("datasets", "DatasetDict", "hugging_face", takes_batch_size=True),
    Row("datasets", "IterableDatasetDict", "hugging_face", takes_batch_size=True),
    Row("tensorflow", "DatasetV2", "tensorflow_data"),
    Row("torch", "DataLoader", "torch_loader"),
    Row("keras", "PyDataset", "keras_dataset"),
)
_ARRAYS = Row("numpy", "ndarray", "arrays", takes_batch_size=True)
_PYTHON = Row("builtins", "object", "iterables")
_DISTRIBUTED = ("DistributedDataset", "DistributedIterator")


def source_of(dataset: Any, *, batch_size: int | None = None) -> Source:
    """The source of global batches that `dataset` is.

    Args:
        dataset: A pipeline of batches, or arrays.
        batch_size: The size of a global batch, for arrays and tables of examples.

    Raises:
        BatchError: If it cannot be a source of batches, or makes its own and was given a
            batch size.

    Example:
        >>> import numpy as np
        >>> source_of(np.arange(6), batch_size=4).cardinality
        2
    """
    _check(dataset, batch_size)
    row = _row_of(dataset, batch_size)
    adapter = importlib.import_module(f"{__package__}.{row.adapter}")
    if row.takes_batch_size:
        return adapter.source_of(dataset, batch_size=batch_size)
    if batch_size is not None:
        raise BatchError(
            f"batch_size={batch_size} was given with a {type(dataset).__name__}, which makes its "
            "own batches. Batch the pipeline to the global batch size and leave batch_size out."
        )
    return adapter.source_of(dataset)


def _check(dataset: Any, batch_size: int | None) -> None:
    if dataset is None:
        raise BatchError(
            "None was given as a dataset; expected a pipeline of batches. Does the function that "
            "makes it return it?"
        )
    if any(base.__name__ in _DISTRIBUTED for base in type(dataset).__mro__):
        raise BatchError(
            f"a {type(dataset).__name__} is distributed already. Iterate over it, or distribute "
            "the dataset that it was made of."
        )
    if batch_size is None:
        return
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise BatchError(f"batch_size is {batch_size!r}; expected an int, 1 or more.")


def _row_of(dataset: Any, batch_size: int | None) -> Row:
    for row in ROWS:
        if row.matches(type(dataset)):
            return row
    return _ARRAYS if _is_arrays(dataset, batch_size) else _PYTHON


def _is_arrays(dataset: Any, batch_size: int | None) -> bool:
    """Whether it is an array or a nest; a list is one only of numbers."""
    if isinstance(dataset, list):
        return batch_size is not None and is_list_of_numbers(dataset)
    if hasattr(dataset, "__array__") or isinstance(dataset, (tuple, Mapping)):
        return True
    return not jax.tree_util.all_leaves([dataset])


def dataset_of_slices(arrays: Any) -> Any:
    """``data.Dataset.from_tensor_slices(arrays)``, imported when it is needed, as adapters are."""
    pipeline = importlib.import_module("replicax.input.pipeline.dataset")
    return pipeline.Dataset.from_tensor_slices(arrays)
