"""TensorFlow's `tf.data.Dataset`, read as NumPy.

What tf.data shuffles anew it shuffles by a state of its own, which no `epoch` reaches.
For passes that can be resumed give ``shuffle`` a seed and
``reshuffle_each_iteration=False``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from replicax.core import nest
from replicax.core.enums import AutoShardPolicy
from replicax.core.errors import BatchError
from replicax.core.spec import TensorSpec
from replicax.input.adapters.host_source import Convert, HostSource
from replicax.input.adapters.reading import Reading
from replicax.input.source import Source

# Not public, but the one place where TensorFlow answers how large its batches are.
_DISTRIBUTE = "tensorflow.python.data.experimental.ops.distribute"


def source_of(dataset: Any) -> Source:
    """A source of the batches of a `tf.data.Dataset`.

    Raises:
        BatchError: If an element has a ragged or sparse part.
    """
    return TensorFlowSource(dataset)


class TensorFlowSource(HostSource):
    """Reads a `tf.data.Dataset`.

    Args:
        dataset: The pipeline.
    """

    description = "a tf.data.Dataset"
    advice = "Batch the examples first: dataset.batch(global_batch_size)."

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._spec = _checked_spec(dataset.element_spec, self.description)

    @property
    def element_spec(self) -> Any:
        """What TensorFlow knows from the graph."""
        return self._spec

    @property
    def cardinality(self) -> int:
        """TensorFlow counts in the same way, with the same numbers for infinite and unknown."""
        return int(self._dataset.cardinality().numpy())

    @property
    def batch_size(self) -> int | None:
        """The size that was given to ``batch``, where TensorFlow can tell."""
        distribute: Any = importlib.import_module(_DISTRIBUTE)
        size = int(distribute.compute_batch_size(self._dataset).numpy())
        return size if size > 0 else None

    @property
    def auto_shard_policy(self) -> AutoShardPolicy | None:
        """What ``with_options`` attached, unless it is AUTO, which is also the default."""
        policy = self._dataset.options().experimental_distribute.auto_shard_policy
        return None if policy.name == "AUTO" else AutoShardPolicy[policy.name]

    def _why_unbatched(self) -> str | None:
        for path, leaf in nest.leaves_with_path(self._spec):
            if leaf.shape == ():
                name = f"leaf {path}" if path else "the element"
                return f"{name} of {self.description} is a scalar: the examples are not batched."
        return None

    def _read(self, convert: Convert, *, epoch: int, start: int) -> Iterator[Any]:
        """Iterates anew; TensorFlow passes over `start` batches. `epoch` changes nothing."""
        dataset = self._dataset.skip(start) if start else self._dataset
        return Reading(dataset.as_numpy_iterator(), convert)


def _checked_spec(spec: Any, description: str) -> Any:
    pairs, structure = jax.tree_util.tree_flatten_with_path(spec)
    if not pairs:
        raise BatchError(f"{description} has elements without tensors: {spec!r}.")
    leaves = [_checked_leaf(path, leaf, description) for path, leaf in pairs]
    return jax.tree_util.tree_unflatten(structure, leaves)


def _checked_leaf(path: Any, leaf: Any, description: str) -> TensorSpec:
    kind = type(leaf).__name__
    name = f"leaf {jax.tree_util.keystr(path)}" if path else "the element"
    if kind == "RaggedTensorSpec":
        raise BatchError(
            f"{name} of {description} is ragged ({leaf}). Give it one shape: padded_batch, or "
            "map with .to_tensor()."
        )
    if kind == "SparseTensorSpec":
        raise BatchError(
            f"{name} of {description} is sparse ({leaf}). Map tf.sparse.to_dense over it."
        )
    if kind != "TensorSpec":
        raise BatchError(f"{name} of {description} is a {kind}; expected dense tensors.")
    shape = None if leaf.shape.rank is None else tuple(leaf.shape.as_list())
    is_string = leaf.dtype.name == "string"
    return TensorSpec(shape, np.dtype(object) if is_string else leaf.dtype.as_numpy_dtype)
