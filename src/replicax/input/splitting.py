"""Divides one global batch among replicas: the arithmetic, and what may be divided.

A batch of m goes to N replicas in contiguous chunks of ceil(m / N); the last ones
may be short or empty. Nothing is invented and nothing is dropped. Nothing here
touches a device: `input.placing` puts the parts where they belong.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from replicax.backend import placement
from replicax.core import nest
from replicax.core.errors import BatchError

_ONE_LEAF: nest.Structure = jax.tree_util.tree_structure(0)


@dataclasses.dataclass(frozen=True, slots=True)
class BatchSplit:
    """How many examples of one global batch each replica receives.

    Attributes:
        sizes: Examples per replica, in replica order.

    Example:
        >>> BatchSplit.of(7, num_replicas=3)
        BatchSplit(sizes=(3, 3, 1))
        >>> BatchSplit.of(4, num_replicas=3).offsets
        (0, 2, 4)
        >>> BatchSplit.filling(6, full_size=8, num_replicas=2)
        BatchSplit(sizes=(4, 2))
    """

    sizes: tuple[int, ...]

    @classmethod
    def of(cls, batch_size: int, *, num_replicas: int) -> BatchSplit:
        """Contiguous chunks of ceil(batch_size / num_replicas)."""
        return _even_split(batch_size, num_replicas)

    @classmethod
    def filling(cls, batch_size: int, *, full_size: int, num_replicas: int) -> BatchSplit:
        """Chunks of the sizes that a full batch gives; the first replicas are filled first.

        A full batch is divided as evenly as can be: 4 examples on three replicas are
        2, 1 and 1. A batch that is larger than a full one is divided as if it were one.
        """
        least, more = divmod(max(batch_size, full_size), num_replicas)
        quotas = tuple(least + (replica < more) for replica in range(num_replicas))
        return cls(_filled(quotas, batch_size))

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each replica's examples begin."""
        return tuple(sum(self.sizes[:replica]) for replica in range(len(self.sizes)))

    def slice_of(self, replicas: range) -> slice:
        """The examples of consecutive replicas."""
        start = sum(self.sizes[: replicas.start])
        return slice(start, start + sum(self.sizes[replicas.start : replicas.stop]))


@functools.lru_cache(maxsize=1024)
def _even_split(batch_size: int, num_replicas: int) -> BatchSplit:
    return BatchSplit(_filled((-(-batch_size // num_replicas),) * num_replicas, batch_size))


def _filled(quotas: tuple[int, ...], batch_size: int) -> tuple[int, ...]:
    sizes = []
    for quota in quotas:
        sizes.append(min(quota, batch_size))
        batch_size -= sizes[-1]
    return tuple(sizes)


def is_on_host(leaf: Any) -> bool:
    """Whether a leaf stays a host array, because no device can hold it: strings."""
    return leaf.dtype.kind in "USO"


def leaves_of(batch: Any, *, may_be_scalars: bool = False) -> tuple[list[Any], nest.Structure]:
    """The arrays of a batch, 64-bit ones narrowed as JAX is set, and its structure.

    Args:
        batch: A nest of arrays with the batch as dim 0; a list of numbers is an array.
        may_be_scalars: Whether leaves without a batch dim are accepted.

    Raises:
        BatchError: If there is no leaf, or one is no array, too large or a scalar.
    """
    if _is_plain(batch):
        return [batch], _ONE_LEAF
    leaves, structure = jax.tree_util.tree_flatten(batch, is_leaf=_is_leaf)
    if not leaves:
        raise BatchError(
            f"a batch is {batch!r}, which has no arrays in it; expected an array, or a nest of "
            "arrays, whose dim 0 counts the examples."
        )
    arrays = [
        leaf
        if _is_plain(leaf)
        else _as_array(leaf, lambda i=index: _name(batch, i), may_be_scalars)
        for index, leaf in enumerate(leaves)
    ]
    return arrays, structure


def names_of(batch: Any) -> list[str]:
    """What to call each leaf of a batch in a message."""
    pairs = jax.tree_util.tree_flatten_with_path(batch, is_leaf=_is_leaf)[0]
    return [jax.tree_util.keystr(path) for path, _ in pairs]


def require_one_size(batch: Any, leaves: list[Any]) -> None:
    """Raises unless every leaf has the same number of examples.

    Raises:
        BatchError: With the sizes by leaf.
    """
    if len({leaf.shape[0] for leaf in leaves}) > 1:
        listing = ", ".join(
            f"{name or 'batch'}: {leaf.shape[0]}"
            for name, leaf in zip(names_of(batch), leaves, strict=True)
        )
        raise BatchError(
            f"leaves of one batch must have the same number of examples in dim 0; got {listing}."
        )


def _is_plain(leaf: Any) -> bool:
    """Whether an array can be taken as it is, the usual case."""
    if type(leaf) is not np.ndarray or leaf.ndim == 0:
        return False
    return leaf.dtype.kind in "biufUS" and leaf.dtype.itemsize < 8


def _is_leaf(node: object) -> bool:
    return nest.is_leaf(node) or _is_list_of_numbers(node)


def _is_list_of_numbers(node: object) -> bool:
    if not isinstance(node, list):
        return False
    return all(isinstance(x, (bool, int, float, str)) or _is_list_of_numbers(x) for x in node)


def _name(batch: Any, index: int) -> str:
    return f"leaf {names_of(batch)[index] or '(the batch itself)'} of the batch"


def _as_array(leaf: Any, name: Callable[[], str], may_be_scalar: bool) -> Any:
    if not isinstance(leaf, jax.Array):
        if isinstance(leaf, nest.NestLeaf):
            raise BatchError(f"{name()} is {type(leaf).__name__}; expected an array on the host.")
        try:
            array = np.asarray(leaf)
        except ValueError:  # a list of lists of different lengths
            raise BatchError(f"{name()} is {leaf!r}, which is no array of one shape.") from None
        if array.dtype.kind in "OV" and not (
            placement.is_array_like(array) or _holds_strings(array)
        ):
            raise BatchError(f"{name()} is {leaf!r}, which is no array of one shape.")
        leaf = _narrowed(array, name)
    if leaf.ndim == 0 and not may_be_scalar:
        raise BatchError(
            f"{name()} is a scalar and cannot be divided among replicas. Batch the examples "
            "first, so that dim 0 counts them."
        )
    return leaf


def _narrowed(array: np.ndarray, name: Callable[[], str]) -> np.ndarray:
    if array.size == 0 and array.dtype.kind in "iufc":
        # An empty part has the type of the parts that other workers and replicas have.
        return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
    try:
        return placement.narrowed(array, "a leaf")
    except BatchError:  # only now is the name worth its price
        return placement.narrowed(array, name())


def _holds_strings(array: np.ndarray) -> bool:
    return array.dtype.kind == "O" and all(isinstance(x, (str, bytes)) for x in array.flat)
