"""Runs a function of whole arrays on the parts that replicas have of them.

The function is traced once with the shapes of the whole arrays, so that whatever it makes of
shapes, dims or masks is right, and the trace is then evaluated on parts. An operation on every
element by itself is one on every element of a part; a sum over a whole array is the sum of the
sums over the parts. Wherever the trace has anything else, the whole is gathered first: a function
that cannot be done in parts is done as it stands.

In a compiled replica function only. `optimizers.sharded` is the only caller.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from replicax.backend import collectives, shards
from replicax.backend.collectives import Reduction
from replicax.backend.shards import ShardLayout
from replicax.core.names import REPLICA_AXIS
from replicax.engine.analysis.uniform import uniform
from replicax.jax_internals import programs as jax_programs

# Every element of the result depends on the same element of the operands; a scalar operand
# is one for all elements.
# fmt: off
ELEMENTWISE = frozenset({
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
    "cbrt", "ceil", "clamp", "clz", "complex", "conj", "convert_element_type", "copy", "copy_p",
    "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1",
    "floor", "ge", "gt", "igamma", "igammac", "imag", "integer_pow", "is_finite", "le", "le_to",
    "lgamma", "log", "log1p", "logistic", "lt", "lt_to", "max", "min", "mul", "ne", "neg",
    "nextafter", "not", "or", "polygamma", "population_count", "pow", "real", "reduce_precision",
    "regularized_incomplete_beta", "rem", "round", "rsqrt", "select_n", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square",
    "stop_gradient", "sub", "tan", "tanh", "xor", "zeta",
})
# fmt: on
# Looked through, by the parameter that holds the function.
_CALLS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}


@dataclasses.dataclass(slots=True, eq=False)
class Split:
    """A value that every replica has a part of.

    Attributes:
        part: This replica's.
        layout: How it is split.
        gather: Gives the whole where it is to be had without gathering the parts.
    """

    part: jax.Array
    layout: ShardLayout
    gather: Callable[[], jax.Array] | None = None
    _whole: jax.Array | None = None

    def whole(self) -> jax.Array:
        """The whole; gathered once."""
        if self._whole is None:
            self._whole = self.gather() if self.gather else self.layout.gathered(self.part)
        return self._whole


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Filled:
    """One scalar in all elements of an array."""

    scalar: Any
    shape: tuple[int, ...]


Value = Any
"""An array, or one of the two above."""


def whole_of(value: Value) -> Any:
    """The whole array that `value` stands for."""
    if isinstance(value, Split):
        return value.whole()
    if isinstance(value, _Filled):
        return jnp.broadcast_to(value.scalar, value.shape)
    return value


def part_of(value: Value, layout: ShardLayout) -> jax.Array:
    """This replica's part of `value`."""
    if isinstance(value, Split):
        return value.part
    if isinstance(value, _Filled):
        return jnp.broadcast_to(value.scalar, (layout.part_size,))
    return layout.own_part(jnp.asarray(value))


def gather_together(values: Sequence[Value], reduction: Reduction) -> list[Any]:
    """The whole of each value; small parts travel together."""
    split = [value for value in values if isinstance(value, Split)]
    wholes = iter(shards.all_gather([v.part for v in split], [v.layout for v in split], reduction))
    return [next(wholes) if isinstance(value, Split) else whole_of(value) for value in values]


def run_on_parts(
    fn: Callable[[list[Any]], Any], values: Sequence[Value]
) -> tuple[list[Value], Any]:
    """What ``fn(values)`` returns, computed on parts as far as that gives the same.

    Args:
        fn: A function of a list of arrays; it sees whole ones.
        values: Arrays, which must be equal on all replicas, and `Split` ones.

    Returns:
        The leaves of the result, arrays or `Split`, and its structure.
    """
    seen = [
        jax.ShapeDtypeStruct(v.layout.shape, v.part.dtype) if isinstance(v, Split) else v
        for v in values
    ]
    closed, shapes = jax.make_jaxpr(fn, return_shape=True)(seen)
    outs = _run(closed.jaxpr, [_equal_everywhere(const) for const in closed.consts], values)
    return outs, jax.tree.structure(shapes)


def _equal_everywhere(const: Any) -> Any:
    """A value that the function captured, marked: part of it may come to be kept."""
    is_number = isinstance(const, Tracer) and jnp.issubdtype(const.dtype, jnp.number)
    is_ref = jax_programs.is_ref(const)
    return uniform(const, "a value that the optimizer uses") if is_number and not is_ref else const


def _run(jaxpr: Any, consts: Sequence[Any], values: Sequence[Value]) -> list[Value]:
    env: dict[Any, Value] = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, values, strict=True))

    def read(atom: Any) -> Value:
        return atom.val if isinstance(atom, jax_programs.Literal) else env[atom]

    for eqn in jaxpr.eqns:
        outs = _run_equation(eqn, [read(atom) for atom in eqn.invars])
        env.update(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _run_equation(eqn: Any, values: list[Value]) -> list[Value]:
    name = eqn.primitive.name
    if name == "broadcast_in_dim" and len(values) == 1 and not eqn.invars[0].aval.shape:
        return [_Filled(whole_of(values[0]), tuple(eqn.params["shape"]))]
    if not any(isinstance(value, (Split, _Filled)) for value in values):
        return _bound(eqn, values)
    if name in _CALLS:
        body = eqn.params[_CALLS[name]]
        return _run(jax_programs.open_jaxpr(body), getattr(body, "consts", ()), values)
    if name in ELEMENTWISE:
        return _run_elementwise(eqn, values)
    first = values[0]
    if isinstance(first, Split):
        if name == "reshape" and eqn.params["dimensions"] is None:
            shape = eqn.params["new_sizes"]
            return [Split(first.part, first.layout.reshaped(shape))]
        if name in _REDUCTIONS and len(eqn.params["axes"]) == len(first.layout.shape):
            return [_REDUCTIONS[name](first)]
    return _bound(eqn, [whole_of(value) for value in values])


def _run_elementwise(eqn: Any, values: list[Value]) -> list[Value]:
    layout = next((value.layout for value in values if isinstance(value, Split)), None)
    if layout is None:
        if all(isinstance(value, _Filled) or not np.shape(value) for value in values):
            scalars = [value.scalar if isinstance(value, _Filled) else value for value in values]
            return [_Filled(out, eqn.outvars[0].aval.shape) for out in _bound(eqn, scalars)]
        return _bound(eqn, [whole_of(value) for value in values])
    shape = eqn.outvars[0].aval.shape
    if any(_shape_of(value) not in ((), shape) for value in values):  # dims of size 1 are stretched
        return _bound(eqn, [whole_of(value) for value in values])
    local = [part_of(value, layout) if _shape_of(value) else value for value in values]
    return [Split(part, layout) for part in _bound(eqn, local)]


def _shape_of(value: Value) -> tuple[int, ...]:
    if isinstance(value, Split):
        return value.layout.shape
    return value.shape if isinstance(value, _Filled) else np.shape(value)


def _bound(eqn: Any, values: list[Any]) -> list[Any]:
    primitive = eqn.primitive
    outs = primitive.bind(*values, **primitive.get_bind_params(eqn.params))
    return list(outs) if primitive.multiple_results else [outs]


def _real(value: Split, otherwise: Any) -> jax.Array:
    """The part, with `otherwise` in place of what only fills it up."""
    if not value.layout.num_added:
        return value.part
    filling = jnp.full_like(value.part, otherwise)
    return jnp.where(value.layout.is_real(), value.part, filling)


def _sum(value: Split) -> jax.Array:
    dtype = value.part.dtype
    own = _real(value, 0).sum(dtype=collectives.summing_dtype(dtype))
    return lax.psum(own, REPLICA_AXIS).astype(dtype)


def _max(value: Split) -> jax.Array:
    return lax.pmax(_real(value, _limit(value.part.dtype, lowest=True)).max(), REPLICA_AXIS)


def _min(value: Split) -> jax.Array:
    return lax.pmin(_real(value, _limit(value.part.dtype, lowest=False)).min(), REPLICA_AXIS)


def _limit(dtype: Any, *, lowest: bool) -> Any:
    if jnp.issubdtype(dtype, jnp.inexact):
        return -math.inf if lowest else math.inf
    info = jnp.iinfo(dtype)
    return info.min if lowest else info.max


_REDUCTIONS: dict[str, Callable[[Split], jax.Array]] = {
    "reduce_sum": _sum,
    "reduce_max": _max,
    "reduce_min": _min,
}
