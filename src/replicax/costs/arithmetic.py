"""Counts what a traced program computes, and what it reads and writes in memory.

Counted are the operations of the trace, as the user wrote them. XLA leaves some out and adds
others; it also counts the body of a loop once, where a trace knows the length of a scan. What is
inside a ``shard_map`` is counted for one replica, everything else for one device. Nothing here runs
or compiles anything, or needs devices.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from replicax.costs.primitives import ELEMENTWISE, FREE, HOST_CALLS, MOVES, READS, num_bytes
from replicax.engine.analysis.varying import CALLS
from replicax.jax_internals.primitives import AXES_OF
from replicax.jax_internals.programs import Literal, is_backward, is_ref, open_jaxpr, sub_jaxprs


@dataclasses.dataclass(frozen=True, slots=True)
class Arithmetic:
    """What a program computes.

    Attributes:
        flops: Floating-point operations. A product of matrices (m, k) and (k, n) counts ``2 m k
            n``, everything elementwise one for each element, a reduction one for each element that
            goes in.
        bytes_accessed: The bytes of the operands and results of products, convolutions,
            reductions, gathers, scatters and sorts; what is elementwise is taken to be computed
            where its neighbours are, and moves nothing.
        is_at_least: Whether there is more: a while loop, of which one round is counted.
        uncounted: The primitives whose operations are not known.
    """

    flops: int
    bytes_accessed: int
    is_at_least: bool
    uncounted: tuple[str, ...]

    @property
    def intensity(self) -> float:
        """Floating-point operations for each byte that is read or written."""
        return self.flops / self.bytes_accessed if self.bytes_accessed else 0.0


def count_arithmetic(jaxpr: Any) -> Arithmetic:
    """What a traced program computes.

    Args:
        jaxpr: The program, open or closed.

    Returns:
        The counts. Of the branches of a cond the one with the most operations counts.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> x, w = jnp.ones((8, 32)), jnp.ones((32, 4))
        >>> dense = jax.make_jaxpr(lambda x, w: jnp.tanh(x @ w))
        >>> count_arithmetic(dense(x, w)).flops  # 2 * 8 * 32 * 4 products and sums, 8 * 4 tanh
        2080
    """
    count = _count(open_jaxpr(jaxpr), {})
    return Arithmetic(count.flops, count.bytes, count.is_at_least, tuple(sorted(count.uncounted)))


def kept_for_backward(jaxpr: Any) -> int:
    """The bytes of the values that a forward pass computes and its backward pass needs.

    Args:
        jaxpr: The program, open or closed.

    Returns:
        The bytes on one device, as the trace has it. XLA may compute a value again, or keep a
        smaller one that it follows from.
    """
    total = 0
    jaxpr = open_jaxpr(jaxpr)
    forward = {}
    for eqn in jaxpr.eqns:
        if not is_backward(eqn):
            forward.update((var, num_bytes(var)) for var in eqn.outvars if not is_ref(var))
            total += max(map(kept_for_backward, sub_jaxprs(eqn.params)), default=0)
            continue
        for atom in eqn.invars:
            if not isinstance(atom, Literal):
                total += forward.pop(atom, 0)
    return total


@dataclasses.dataclass(frozen=True, slots=True)
class _Count:
    flops: int = 0
    bytes: int = 0
    is_at_least: bool = False
    uncounted: frozenset[str] = frozenset()

    def plus(self, other: _Count, times: int = 1) -> _Count:
        return _Count(
            self.flops + times * other.flops,
            self.bytes + times * other.bytes,
            self.is_at_least or other.is_at_least,
            self.uncounted | other.uncounted,
        )


def _count(jaxpr: Any, known: dict[int, _Count]) -> _Count:
    """The counts of `jaxpr`; a body that stands in many places is counted once."""
    found = known.get(id(jaxpr))
    if found is None:
        found = _Count()
        for eqn in jaxpr.eqns:
            found = found.plus(_of_equation(eqn, known))
        known[id(jaxpr)] = found
    return found


def _of_equation(eqn: Any, known: dict[int, _Count]) -> _Count:
    name, params = eqn.primitive.name, eqn.params
    if name in CALLS:
        return _count(open_jaxpr(params[CALLS[name]]), known)
    if name == "cond":
        branches = [_count(open_jaxpr(branch), known) for branch in params["branches"]]
        return max(branches, key=lambda count: count.flops)
    if name == "scan":
        return _Count().plus(_count(open_jaxpr(params["jaxpr"]), known), params["length"])
    if name == "while":
        once = _count(open_jaxpr(params["body_jaxpr"]), known)
        return _Count(is_at_least=True).plus(once)
    if name in MOVES or name in FREE or name in HOST_CALLS or name in AXES_OF:
        return _Count(bytes=2 * num_bytes(_moved(eqn)) if name in READS else 0)
    out = eqn.outvars[0] if eqn.outvars else None
    rule = _RULES.get(name)
    if rule is not None:
        return _Count(rule(eqn) if _is_floating(out) else 0, _traffic(eqn))
    if name in ELEMENTWISE:
        return _Count(_size(out) if _is_floating(out) else 0)
    return _Count(uncounted=frozenset({name}))


def _traffic(eqn: Any) -> int:
    return sum(num_bytes(atom) for atom in (*eqn.invars, *eqn.outvars))


def _moved(eqn: Any) -> Any:
    """What a gather or an update reads and writes; the rest of the operand stays where it is."""
    updates = {"dynamic_update_slice": 1, "scatter": 2}.get(eqn.primitive.name)
    return eqn.outvars[0] if updates is None else eqn.invars[updates]


def _size(atom: Any) -> int:
    return math.prod(getattr(atom.aval, "shape", ()))


def _is_floating(var: Any) -> bool:
    dtype = getattr(getattr(var, "aval", None), "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.inexact)


def _dot(eqn: Any) -> int:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    shape = eqn.invars[0].aval.shape
    return 2 * _size(eqn.outvars[0]) * math.prod(shape[dim] for dim in contracted)


def _convolution(eqn: Any) -> int:
    """One product and sum for each output and each element of one filter, padding included."""
    kernel = eqn.invars[1].aval.shape
    filters = kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
    return 2 * _size(eqn.outvars[0]) * math.prod(kernel) // max(filters, 1)


def _reduction(eqn: Any) -> int:
    return _size(eqn.invars[0])


def _window(eqn: Any) -> int:
    return _size(eqn.outvars[0]) * math.prod(eqn.params["window_dimensions"])


def _scatter(eqn: Any) -> int:
    return _size(eqn.invars[2])


def _order(eqn: Any) -> int:
    size = _size(eqn.invars[0])
    return size * max(1, math.ceil(math.log2(size))) if size else 0


_RULES: dict[str, Callable[[Any], int]] = {
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
    **dict.fromkeys(
        (
            *("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"),
            *("argmax", "argmin", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"),
        ),
        _reduction,
    ),
    **dict.fromkeys(
        (
            *("reduce_window_sum", "reduce_window_max", "reduce_window_min", "reduce_window"),
            *("select_and_scatter_add", "select_and_gather_add"),
        ),
        _window,
    ),
    **dict.fromkeys(
        ("scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max"), _scatter
    ),
    "sort": _order,
    "top_k": _order,
}
