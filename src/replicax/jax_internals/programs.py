"""Traced programs: their types, what is in an equation, and how to evaluate them.

`jax.extend.core` has the first three types, but its package imports Pallas, which takes 25 ms.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from jax._src import core as jax_core
from jax._src import source_info_util
from jax._src.interpreters.partial_eval import DynamicJaxprTrace, DynamicJaxprTracer
from jax._src.state.types import AbstractRef

from replicax.jax_internals.traces import is_traced_inside

_PACKAGE = str(pathlib.Path(__file__).resolve().parents[1]) + "/"

Jaxpr = jax_core.Jaxpr

ClosedJaxpr: Any = getattr(jax_core, "ClosedJaxpr", Jaxpr)
"""With JAX 0.12, every Jaxpr: there each has its own constants, and ``.jaxpr`` is the same one."""

Literal = jax_core.Literal

UNKNOWN_LINE = "an unknown line"
"""What `user_line` gives where it finds none."""

InconclusiveDimension = jax_core.InconclusiveDimensionOperation
"""What Python code raises that needs the number behind the symbol for a size."""


def eval_jaxpr(jaxpr: Any, consts: Sequence[Any], *args: Any) -> list[Any]:
    """Evaluates a jaxpr in the current trace; `jax.core` no longer documents this.

    Where the trace records a program, equations without effects are recorded as they are. JAX
    would call each primitive, and trace the body of each `shard_map` again.
    """
    trace = jax_core.trace_ctx.trace
    if isinstance(trace, DynamicJaxprTrace) and hasattr(trace, "emit_eqn"):
        return _recorded(trace, jaxpr, consts, args)
    return jax_core.eval_jaxpr(jaxpr, consts, *args)


def _recorded(trace: Any, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    here = source_info_util.current()
    stack = here.name_stack
    is_nested = bool(stack.stack)
    given = [trace.to_jaxpr_tracer(value, here) for value in (*consts, *args)]
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), given, strict=True))

    def tracer_of(atom: Any) -> Any:
        if type(atom) is Literal:
            return DynamicJaxprTracer(trace, atom.aval, atom, here)
        return env[atom]

    for eqn in jaxpr.eqns:
        values = list(map(tracer_of, eqn.invars))
        if eqn.effects:
            with origin_of(eqn):
                outs = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
            outs = outs if eqn.primitive.multiple_results else [outs]
        else:
            source = eqn.source_info
            if is_nested:
                source = source.replace(name_stack=stack + source.name_stack)
            avals = [var.aval for var in eqn.outvars]
            outs = trace.emit_eqn(
                values, avals, eqn.primitive, eqn.params, eqn.effects, source, eqn.ctx
            )
        env.update(zip(eqn.outvars, outs, strict=True))
    return list(map(tracer_of, jaxpr.outvars))


def call_jaxpr(jaxpr: Any, args: Sequence[Any], name: str) -> list[Any]:
    """What `jaxpr`, without constants, gives for `args`, as one equation of the current trace.

    It is that of a `jit` inside a `jit`, whose function would have been traced to `jaxpr`.
    """
    count = len(jaxpr.outvars)
    stand_in = jax.jit(lambda *args: (0.0,) * count, keep_unused=True)
    (eqn,) = jax.make_jaxpr(stand_in)(*args).jaxpr.eqns
    params = eqn.params | {"jaxpr": ClosedJaxpr(jaxpr, ()), "name": name}
    return eqn.primitive.bind(*args, **params)


def shaped_array(shape: Sequence[int], dtype: Any) -> Any:
    """The strongly typed abstract value that a computation here would have.

    That includes the mesh of a `shard_map`, which JAX counts as part of the type: Equinox compares
    the types of old and new state.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return jax_core.ShapedArray(tuple(shape), dtype)
    spec = jax.sharding.PartitionSpec(*[None] * len(shape))
    sharding = jax.sharding.NamedSharding(mesh, spec)
    return jax_core.ShapedArray(tuple(shape), dtype, sharding=sharding)


def is_ref(atom: Any) -> bool:
    """Whether a variable of a jaxpr is a mutable Ref, not a value."""
    return isinstance(atom.aval, AbstractRef)


def open_jaxpr(jaxpr: Any) -> Any:
    """The plain Jaxpr of a ClosedJaxpr; a plain one unchanged."""
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


_BODIES = (Jaxpr, ClosedJaxpr)


def _bodies(params: Mapping[str, Any]) -> list[Any]:
    """Every jaxpr among an equation's parameters, also inside tuples; most have none."""
    found = []
    for value in params.values():
        if isinstance(value, _BODIES):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += [item for item in value if isinstance(item, _BODIES)]
    return found


def sub_jaxprs(params: Mapping[str, Any]) -> list[Any]:
    """Every jaxpr among an equation's parameters, also inside tuples, as plain Jaxprs."""
    return [open_jaxpr(body) for body in _bodies(params)]


def scan_counts(eqn: Any) -> tuple[int, int]:
    """How many operands of a scan are the same in every round, and how many it carries."""
    params = eqn.params
    if "ft_in" not in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()  # since JAX 0.11
    return len(consts), len(carry)


@dataclasses.dataclass(frozen=True, slots=True)
class TransposedProduct:
    """How a traced array was made: by transposing a product.

    Attributes:
        product: The product.
        permutation: How it was transposed.
        contracted: The sizes of the dims that it was summed over.
    """

    product: Any
    permutation: tuple[int, ...]
    contracted: tuple[int, ...]


def transposed_product(array: Any) -> TransposedProduct | None:
    """How `array` was made, if that was by transposing a product in the innermost trace.

    JAX has no public way to look at what made a tracer.
    """
    transposition = getattr(array, "parent", None) if is_traced_inside(array) else None
    if transposition is None or transposition.primitive is not jax.lax.transpose_p:
        return None
    (product,) = transposition.in_tracers
    multiplication = getattr(product, "parent", None)
    if multiplication is None or multiplication.primitive is not jax.lax.dot_general_p:
        return None
    (axes, _), _ = multiplication.params["dimension_numbers"]
    shape = multiplication.in_tracers[0].aval.shape
    contracted = tuple(shape[axis] for axis in axes)
    return TransposedProduct(product, transposition.params["permutation"], contracted)


def captured_tracers(jaxpr: Any) -> Iterator[Any]:
    """The tracers among the constants of bodies at any depth of a plain Jaxpr.

    Such a body cannot be compiled. JAX leaves them there when a rule of ``custom_jvp`` or
    ``custom_vjp`` closes over a tracer.
    """
    for eqn in jaxpr.eqns:
        for body in _bodies(eqn.params):
            if isinstance(body, ClosedJaxpr):
                yield from (c for c in body.consts if isinstance(c, jax_core.Tracer))
            yield from captured_tracers(open_jaxpr(body))


def user_line(eqn: Any) -> str:
    """The user's ``file:line`` that made an equation, frames of JAX and Replicax left out."""
    for frame in source_info_util.user_frames(eqn.source_info.traceback):
        if not frame.file_name.startswith(_PACKAGE):
            return f"{frame.file_name}:{frame.start_line}"
    return UNKNOWN_LINE


def is_backward(eqn: Any) -> bool:
    """Whether an equation is part of the backward pass of a derivative."""
    return "transpose(" in str(eqn.source_info.name_stack)


@contextlib.contextmanager
def origin_of(eqn: Any) -> Iterator[None]:
    """Equations bound in here carry the source line, name and context of ``eqn``."""
    name_stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with (
        source_info_util.user_context(eqn.source_info.traceback, name_stack=name_stack),
        eqn.ctx.manager,
    ):
        yield
