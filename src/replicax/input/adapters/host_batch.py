"""Turns what a pipeline yields into a nest of host arrays, or says why that cannot be.

Every adapter sends its elements through `host_batch`, so that a scalar, a ragged or a
sparse leaf is the same error whichever library made it. No library is imported here:
arrays of other libraries are known by the module of their class.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from replicax.core import nest
from replicax.core.errors import BatchError
from replicax.core.spec import TensorSpec
from replicax.input.source import Batch, BatchPart, PartOf

_NUMBERS = (bool, int, float, str)
_SPARSE = ("SparseTensor", "IndexedSlices", "BCOO", "BCSR")
_RAGGED = ("RaggedTensor",)


def host_batch(element: Any, *, description: str, advice: str) -> Batch:
    """The element with every leaf as a NumPy array whose dim 0 counts the examples.

    Args:
        element: What the pipeline gave; a list of numbers is one array.
        description: What the pipeline is, for messages.
        advice: How to batch its examples, a full sentence.

    Raises:
        BatchError: If it has no leaves, or a leaf that is a scalar, ragged, sparse or no array.

    Example:
        >>> host_batch({"x": [1, 2, 3]}, description="a list", advice="Batch it.")
        {'x': array([1, 2, 3])}
    """
    leaves, arrays, structure = _host_arrays(element, description, advice)
    for position, array in enumerate(arrays):
        if array.ndim == 0:
            raise BatchError(
                f"{_names(element)[position]} of {description} is a scalar, {leaves[position]!r}: "
                f"the examples are not batched. {advice}"
            )
    return jax.tree_util.tree_unflatten(structure, arrays)


def host_element(element: Any, *, description: str) -> Any:
    """The element with every leaf as a NumPy array, which may be a scalar.

    Raises:
        BatchError: If it has no leaves, or a leaf that is ragged, sparse or no array.
    """
    _, arrays, structure = _host_arrays(element, description, "Give it arrays.")
    return jax.tree_util.tree_unflatten(structure, arrays)


def _host_arrays(
    element: Any, description: str, advice: str
) -> tuple[list[Any], list[np.ndarray], Any]:
    """The leaves, the same as arrays, and the structure."""
    if element is None:
        raise BatchError(f"{description} gave None instead of a batch. {advice}")
    leaves, structure = jax.tree_util.tree_flatten(element, is_leaf=_is_leaf)
    if not leaves:
        raise BatchError(
            f"{description} gave {element!r}, which has no arrays in it; expected a batch: an "
            "array or a nest of arrays whose dim 0 counts the examples."
        )
    arrays: list[np.ndarray] = []
    for position, leaf in enumerate(leaves):
        array = _host_array(leaf)
        if isinstance(array, _Refusal):
            raise BatchError(
                f"{_names(element)[position]} of {description} {array.reason} {array.instead}"
            )
        arrays.append(array)
    return leaves, arrays, structure


def num_examples(batch: Batch, *, description: str) -> int:
    """How many examples a batch has.

    Raises:
        BatchError: If its leaves do not agree.
    """
    pairs = nest.leaves_with_path(batch)
    sizes = {len(leaf) for _, leaf in pairs}
    if len(sizes) > 1:
        listing = ", ".join(f"{path or 'batch'}: {len(leaf)}" for path, leaf in pairs)
        raise BatchError(
            f"leaves of one batch of {description} must have the same number of examples in dim 0; "
            f"got {listing}."
        )
    return sizes.pop()


def part_of_batch(batch: Batch, part_of: PartOf, *, description: str) -> BatchPart:
    """The wanted examples of a batch that was read whole."""
    size = num_examples(batch, description=description)
    part = part_of(size)
    return BatchPart(nest.map_leaves(lambda leaf: leaf[part], batch), size)


def spec_of(batch: Batch, *, num_examples: int | None) -> Any:
    """The shapes and dtypes of batches like this one.

    Args:
        batch: Some examples of one batch.
        num_examples: The size of every batch, None if they differ. A string has no width:
            other batches may hold longer ones.
    """

    def spec(leaf: np.ndarray) -> TensorSpec:
        shape = (num_examples, *leaf.shape[1:]) if leaf.ndim else ()
        return TensorSpec(shape, without_width(leaf.dtype))

    return nest.map_leaves(spec, batch)


def without_width(dtype: Any) -> np.dtype:
    """A dtype that says only that an array holds strings, if that is what it holds."""
    dtype = np.dtype(dtype)
    return np.dtype(dtype.kind) if dtype.kind in "US" else dtype


class _Refusal:
    """Why a leaf cannot be a host array."""

    def __init__(self, reason: str, instead: str) -> None:
        self.reason = reason
        self.instead = instead


def _is_leaf(node: object) -> bool:
    return nest.is_leaf(node) or is_list_of_numbers(node)


def is_list_of_numbers(node: object) -> bool:
    """Whether `node` is one array, written as a list or as lists in a list."""
    return isinstance(node, list) and all(
        isinstance(x, _NUMBERS) or is_list_of_numbers(x) for x in node
    )


def _names(element: Any) -> list[str]:
    pairs = jax.tree_util.tree_flatten_with_path(element, is_leaf=_is_leaf)[0]
    paths = (jax.tree_util.keystr(path) for path, _ in pairs)
    return [f"leaf {path}" if path else "the element" for path in paths]


def _host_array(leaf: Any) -> np.ndarray | _Refusal:
    if type(leaf) is np.ndarray and leaf.dtype.kind != "O":
        return leaf
    try:
        array = _converter(type(leaf))(leaf)
    except (ValueError, TypeError) as error:
        return _Refusal(
            f"is a {type(leaf).__name__} that NumPy cannot hold as one array ({error}).",
            "Pad the examples to one shape, or convert it to an array.",
        )
    if isinstance(array, np.ndarray) and array.dtype.kind == "O":
        return _strings(array)
    return array


def _strings(array: np.ndarray) -> np.ndarray | _Refusal:
    """An array of objects, which is accepted if the objects are strings."""
    for value in array.flat:
        if not isinstance(value, (str, bytes)):
            return _Refusal(
                f"is an array of objects (the first that is no string is a "
                f"{type(value).__name__}): ragged, or no numbers at all.",
                "Pad the examples to one shape before batching them.",
            )
    return array


@functools.lru_cache(maxsize=256)
def _converter(kind: type) -> Callable[[Any], np.ndarray | _Refusal]:
    """How leaves of a class become NumPy arrays."""
    if issubclass(kind, nest.NestLeaf):
        return lambda leaf: _Refusal(
            f"is a {kind.__name__}, which belongs to the replicas already.",
            "Distribute host arrays.",
        )
    names = [base.__name__ for base in kind.__mro__]
    roots = [base.__module__.partition(".")[0] for base in kind.__mro__]
    if any(name in _RAGGED for name in names):
        return lambda leaf: _Refusal(
            f"is ragged (a {kind.__name__}).", "Pad it to one shape before distributing it."
        )
    if any(name in _SPARSE for name in names) or "scipy" in roots:
        return lambda leaf: _Refusal(
            f"is sparse (a {kind.__name__}).", "Make it dense before distributing it."
        )
    if "torch" in roots and "Tensor" in names:
        return _from_torch
    if "tensorflow" in roots and hasattr(kind, "numpy"):
        return lambda leaf: np.asarray(leaf.numpy())
    return np.asarray


def _from_torch(tensor: Any) -> np.ndarray | _Refusal:
    if getattr(tensor, "is_nested", False):
        return _Refusal("is ragged (a nested tensor).", "Pad it to one shape.")
    if str(tensor.layout) != "torch.strided":
        return _Refusal(f"is sparse (layout {tensor.layout}).", "Call to_dense() on it.")
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if str(tensor.dtype) == "torch.bfloat16":  # NumPy has no such type; JAX registers one
        torch: Any = importlib.import_module("torch")
        return tensor.contiguous().view(torch.int16).numpy().view(jax.numpy.bfloat16.dtype)
    return tensor.numpy()


def join_parts(element: Any, *, description: str) -> BatchPart:
    """One part out of a nest whose leaves are the parts of several pipelines in step.

    Raises:
        BatchError: If the pipelines disagree about the size of this batch.
    """
    if isinstance(element, BatchPart):
        return element
    parts, structure = jax.tree_util.tree_flatten(element)
    sizes: Sequence[int] = sorted({part.global_size for part in parts})
    if len(sizes) != 1:
        raise BatchError(
            f"{description} zips batches of different sizes, {list(sizes)}: leaves of one batch "
            "must have the same number of examples. Batch every dataset alike, or zip first."
        )
    batch = jax.tree_util.tree_unflatten(structure, [part.batch for part in parts])
    return BatchPart(batch, sizes[0])
