"""The arguments of a compiled function: what is traced, what is static, and the cache key.

Arrays, Python floats and distributed values are traced; Python ints, bools,
strings and other hashable objects are part of the key; variables are passed as
they are and recognised by identity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from replicax.backend import placement
from replicax.core import nest
from replicax.core.errors import BatchError
from replicax.core.exact import EXACT_TYPES, shown
from replicax.core.tracebacks import argument_names
from replicax.engine.functions.closures import ById, value_key
from replicax.jax_internals.arrays import ConcreteArray
from replicax.values.distributed import Mirrored, PerReplica
from replicax.values.leaves import Leaf, leaf_kind

Lift = Callable[[Any], Any]
"""Makes, from the traced array, what the function sees."""


_PLAIN_LEAVES = (PerReplica, ConcreteArray, np.ndarray, float, int, bool, str)


def flatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Sequence[Any], Hashable]:
    """The leaves of the arguments, and something that tells their structure.

    Most calls pass a few leaves by position; those need no walk.
    """
    if not kwargs:
        for arg in args:
            if type(arg) not in _PLAIN_LEAVES:
                break
        else:
            return args, len(args)
    return nest.flatten((args, kwargs))


def leaf_key(leaf: Any) -> Hashable:
    """What of `leaf` a compiled program depends on."""
    match leaf_kind(leaf):
        case Leaf.PER_REPLICA:
            return leaf._program_key
        case Leaf.JAX_ARRAY | Leaf.TRACER:
            return leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)  # keys have none
        case Leaf.HOST_ARRAY:
            if not placement.is_array_like(leaf):
                raise BatchError(
                    f"an argument of a compiled function is a host array of dtype {leaf.dtype}, "
                    "which cannot enter a compiled program. Convert it to numbers, or pass Python "
                    "strings."
                )
            return leaf.shape, leaf.dtype
        case Leaf.MIRRORED:
            return "mirrored", id(leaf.mesh), leaf.shape, leaf.dtype
        case Leaf.VARIABLE:
            return ById(leaf)
    if type(leaf) in (float, complex):
        return type(leaf)
    key = value_key(leaf)
    if isinstance(key, ById) and type(leaf).__hash__ is not object.__hash__:
        return _hashable(leaf)
    return key


def _hashable(leaf: Any) -> Hashable:
    try:
        hash(leaf)
    except TypeError:
        raise BatchError(
            f"an argument of a compiled function is {leaf!r} of type {type(leaf).__name__}, which "
            "is neither an array nor hashable. Pass arrays, numbers, strings, hashable objects, or "
            "nests of them."
        ) from None
    return type(leaf), leaf


def lower(leaf: Any, name: Callable[[], str]) -> Any:
    """The array that `leaf` enters the program as; `leaf` itself if it is static."""
    match leaf_kind(leaf):
        case Leaf.PER_REPLICA:
            return leaf._as_packed(name)
        case Leaf.JAX_ARRAY | Leaf.TRACER:
            return placement.uncommitted_argument(leaf, name)
        case Leaf.HOST_ARRAY if leaf.dtype.itemsize >= 8:
            return placement.narrowed(leaf, name())
        case Leaf.MIRRORED:
            return leaf._replicated(name)
    return leaf


def path_of(index: int, structure: Any) -> str:
    """What to call one leaf of the arguments in an error."""
    if isinstance(structure, int):  # `flatten` found nothing but leaves
        return f"the argument at [0][{index}]"
    pairs = nest.leaves_with_path(nest.unflatten(structure, range(structure.num_leaves)))
    return f"the argument at {pairs[index][0]}"


def name_of(index: int, structure: Any, fn: Callable[..., Any]) -> str:
    """Which parameter of `fn` leaf `index` belongs to, and where in it, for the retrace warning."""
    if isinstance(structure, int):  # `flatten` found nothing but leaves
        args, kwargs = range(structure), {}
    else:
        try:
            args, kwargs = nest.unflatten(structure, range(structure.num_leaves))
        except Exception:  # of a node of the user's, which takes no numbers for its arrays
            return str(index)
    found = argument_names(fn, args, kwargs).get(index)
    return str(index) if found is None else f"{found[0]!r}{found[1]}"


@dataclasses.dataclass(frozen=True, slots=True)
class PassedThrough:
    """Stands in a traced result for an argument that every replica returned as it came."""

    index: int


def put_back(result: Any, leaves: Sequence[Any]) -> Any:
    """`result` with the arguments themselves where they were passed through."""
    return nest.map_leaves(
        lambda leaf: leaves[leaf.index] if isinstance(leaf, PassedThrough) else leaf, result
    )


def is_traced(leaf: Any) -> bool:
    """Whether `leaf` enters the program as an array."""
    match leaf_kind(leaf):
        case Leaf.PER_REPLICA | Leaf.MIRRORED | Leaf.JAX_ARRAY | Leaf.TRACER:
            return True
        case Leaf.HOST_ARRAY:
            return placement.is_array_like(leaf)
    return type(leaf) in (float, complex)


def lift(leaf: Any) -> Lift:
    """How the function sees the traced array of `leaf`."""
    match leaf_kind(leaf):
        case Leaf.PER_REPLICA:
            mesh, shapes = leaf.mesh, leaf.shapes
            return lambda array: PerReplica(mesh, packed=array, shapes=shapes)
        case Leaf.MIRRORED:
            mesh = leaf.mesh
            return lambda array: Mirrored(mesh, array=array)
    return lambda array: array


def describe_change(old: Hashable, new: Hashable) -> str:
    """What differs between two keys of one argument, for the retrace warning."""
    return f"{_show(old)} -> {_show(new)}"


def _show(key: Any) -> str:
    if isinstance(key, tuple) and len(key) == 2 and key[0] in EXACT_TYPES:
        return shown(key)
    if isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], type):
        return repr(key[1])
    if isinstance(key, tuple) and len(key) == 3 and isinstance(key[0], tuple):
        return f"array of shape {key[0]} and dtype {key[1]}"
    if isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], tuple):
        return f"array of shape {key[0]} and dtype {key[1]}"
    return repr(key)
