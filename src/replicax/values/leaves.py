"""What a leaf of a nest is: the one place that decides it; all others ask.

Eight kinds, told apart in this order: a subclass of several is the first of them. Knows variables
only as what a nest never looks into.
"""

from __future__ import annotations

import enum
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from replicax.core.nest import NestLeaf
from replicax.jax_internals.arrays import ConcreteArray
from replicax.values.distributed import Mirrored, PerReplica


class Leaf(enum.Enum):
    """The kinds of leaves."""

    PER_REPLICA = "a value of each replica's own"
    MIRRORED = "a value that is equal on all replicas"
    VARIABLE = "a variable, or one copy of it"
    TRACER = "a value of a program that is being traced"
    JAX_ARRAY = "a concrete array of JAX"
    HOST_ARRAY = "an array or scalar of NumPy"
    NUMBER = "a Python number"
    OTHER = "any other object"

    __hash__ = object.__hash__  # the one of Enum is Python code


_BY_TYPE: dict[type, Leaf] = {
    PerReplica: Leaf.PER_REPLICA,
    Mirrored: Leaf.MIRRORED,
    ConcreteArray: Leaf.JAX_ARRAY,
    np.ndarray: Leaf.HOST_ARRAY,
    **dict.fromkeys((bool, int, float, complex), Leaf.NUMBER),
    **dict.fromkeys((str, bytes, type(None)), Leaf.OTHER),
}
_BY_CLASS: tuple[tuple[Any, Leaf], ...] = (
    (PerReplica, Leaf.PER_REPLICA),
    (Mirrored, Leaf.MIRRORED),
    (NestLeaf, Leaf.VARIABLE),
    (Tracer, Leaf.TRACER),
    (jax.Array, Leaf.JAX_ARRAY),
    ((np.ndarray, np.generic), Leaf.HOST_ARRAY),
    ((bool, int, float, complex), Leaf.NUMBER),
)


def leaf_kind(leaf: Any) -> Leaf:
    """What `leaf` is.

    Example:
        >>> import jax.numpy as jnp
        >>> [leaf_kind(x).name for x in (jnp.zeros(2), np.float64(1.0), 1.0, "text")]
        ['JAX_ARRAY', 'HOST_ARRAY', 'NUMBER', 'OTHER']
    """
    kind = _BY_TYPE.get(type(leaf))
    if kind is not None:
        return kind
    return next((kind for classes, kind in _BY_CLASS if isinstance(leaf, classes)), Leaf.OTHER)
