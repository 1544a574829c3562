"""What a row of the table of datasets is, and how its batches are looked at."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from replicax.input.adapters.table import source_of
from replicax.input.source import Source

Each = Callable[[Any], Any]


def unchanged(example):
    return example


@dataclasses.dataclass(frozen=True)
class Row:
    """One kind of dataset.

    Attributes:
        name: What the tests are called by.
        make: From examples, the batch size and a function for each example to a dataset.
        takes_batch_size: Whether the batch size is given to the adapter.
        is_indexed: Whether parts of batches can be read.
        is_frugal: Whether reading a part reads no other example.
        has_function: Whether a function of the user's sees each example.
        knows_cardinality: Whether the number of batches is known.
        knows_batch_size: Whether the size of a full batch is known.
        knows_spec: Whether shapes and dtypes are known before a pass.
        reads_ahead: Whether examples are read before they are asked for.
    """

    name: str
    make: Callable[[np.ndarray, int, Each], Any]
    takes_batch_size: bool = False
    is_indexed: bool = False
    is_frugal: bool = False
    has_function: bool = True
    knows_cardinality: bool = True
    knows_batch_size: bool = True
    knows_spec: bool = True
    reads_ahead: bool = False

    def source(self, examples: np.ndarray, batch_size: int, each: Each = unchanged) -> Source:
        dataset = self.make(examples, batch_size, each)
        return source_of(dataset, batch_size=batch_size if self.takes_batch_size else None)


def x_of(batch):
    """The examples in a batch, however the row wraps them."""
    if isinstance(batch, dict):
        return batch["x"]
    return batch[0] if isinstance(batch, tuple) else batch


def cut(examples, batch_size):
    return [examples[i : i + batch_size] for i in range(0, len(examples), batch_size)]


def mapped(examples, each):
    """What a function for each example makes of an array."""
    return np.stack([each(x) for x in examples]) if len(examples) else examples
