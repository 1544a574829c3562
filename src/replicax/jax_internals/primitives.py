"""Primitives: which of JAX's have to do with a mesh axis, and how to make our own.

The passes over a trace know a collective by its name, and its mesh axes by a parameter; JAX
promises neither. So a primitive that names an axis and is not in the table is refused, never taken
for a local operation, and a test compares the table with the JAX that is installed.

Our own primitives mark values for those passes; there is no documented way to say what becomes of
them afterwards. `jax.extend.core` has the type, but its package imports Pallas, which takes 25 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax._src import core as jax_core
from jax._src.interpreters import ad, batching, mlir

from replicax.jax_internals.programs import sub_jaxprs

Primitive = jax_core.Primitive

AXES_OF = {
    **dict.fromkeys(
        (
            *("psum", "pmax", "pmin", "psum_invariant", "unreduced_psum"),
            *("unreduced_pmax", "unreduced_pmin", "pvary", "preduced"),
            *("reduced_vary_cast", "reduced_vary_cast_p"),  # by JAX 0.12, and by older ones
            *("vary_unreduced_cast", "vary_unreduced_cast_p"),
            *("psum_start", "psum_invariant_start", "unreduced_psum_start"),
        ),
        "axes",
    ),
    **dict.fromkeys(
        (
            *("all_gather", "all_gather_invariant", "all_gather_reduced", "reduce_scatter"),
            *("unreduced_reduce_scatter", "all_to_all", "ragged_all_to_all", "ppermute"),
            *("pbroadcast", "pbroadcast_dynamic", "psend", "precv", "axis_index"),
            *("all_gather_start", "all_gather_reduced_start", "reduce_scatter_start"),
            *("unreduced_reduce_scatter_start", "all_to_all_start", "pbroadcast_start"),
            *("ppermute_start", "replicax_uniform"),
        ),
        "axis_name",
    ),
}
"""For each primitive that names mesh axes, whether or not it communicates, their parameter."""

_COLLECTIONS = (tuple, list, set, frozenset)
_LABELS = frozenset({"name"})  # primitives with strings of the user's own


def named_axes(eqn: Any) -> tuple[Any, ...]:
    """The mesh axes that an equation names, if its primitive is in the table."""
    parameter = AXES_OF.get(eqn.primitive.name)
    if parameter is None:
        return ()
    axes = eqn.params.get(parameter, ())
    return tuple(axes) if isinstance(axes, tuple | list | set | frozenset) else (axes,)


def names_unknown(eqn: Any, axis: str) -> bool:
    """Whether an equation has to do with ``axis`` in a way that the table does not know.

    Of an equation with bodies only the bodies count: what they do shows in it.
    """
    name, params = eqn.primitive.name, eqn.params
    if name in AXES_OF:
        return AXES_OF[name] not in params
    if name in _LABELS or not (_has_effect(eqn, axis) or _is_named_in(params, axis)):
        return False
    return not sub_jaxprs(params)


def _has_effect(eqn: Any, axis: str) -> bool:
    effects = eqn.effects
    return bool(effects) and jax_core.NamedAxisEffect(axis) in effects


def _is_named_in(params: Mapping[str, Any], axis: str) -> bool:
    for value in params.values():  # of every equation of a program, so in plain loops
        if isinstance(value, str):
            if value == axis:
                return True
        elif isinstance(value, _COLLECTIONS):
            for item in value:
                if isinstance(item, str) and item == axis:
                    return True
    return False


def lower_as_identity(primitive: Any) -> None:
    """Lets a primitive with one operand compile to nothing, and vmap look through it.

    Our own primitives mark values for the passes over a trace; there is no documented way to say
    what becomes of them afterwards.
    """
    mlir.register_lowering(primitive, lambda ctx, value, **params: [value])

    def batched(args: Any, dims: Any, **params: Any) -> Any:
        return primitive.bind(*args, **params), dims[0]

    batching.primitive_batchers[primitive] = batched


def differentiate_as_identity(primitive: Any) -> None:
    """Lets the derivative of a primitive with one operand be that of the identity."""
    ad.defjvp(primitive, lambda tangent, value, **params: tangent)
