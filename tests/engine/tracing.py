"""Traces a replica function as the library does, and analyses what varies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from replicax.engine.analysis.varying import analyse

AXIS = "replica"


def trace(fn: Callable[..., Any]) -> tuple[Any, list[bool]]:
    """The jaxpr of ``fn(x, m)`` on one replica, and which of its inputs vary.

    ``x`` differs between replicas, ``m`` does not; both are float32[4].
    """
    mesh = jax.make_mesh((4, 2), (AXIS, "x"), axis_types=(AxisType.Auto,) * 2)
    mapped = jax.shard_map(
        lambda x, m: jax.tree.map(lambda out: out[None], fn(x[0], m)),
        mesh=mesh,
        in_specs=(P(AXIS), P()),
        out_specs=P(AXIS),
        axis_names={AXIS},
        check_vma=False,
    )
    (eqn,) = jax.make_jaxpr(mapped)(jnp.ones((4, 4)), jnp.ones(4)).eqns
    varying = [AXIS in spec for spec in eqn.params["in_specs"]]  # constants of fn come first
    return eqn.params["jaxpr"], varying


def varying(fn: Callable[..., Any]) -> Any:
    """The analysis of ``fn(x, m)``: one bool, or a list when it returns several values."""
    jaxpr, varying_in = trace(fn)
    outs = analyse(jaxpr, varying_in, axis=AXIS)
    return outs[0] if len(outs) == 1 else outs


def psum(value: jax.Array) -> jax.Array:
    return lax.psum(value, AXIS)


def set_to(ref: Any, value: jax.Array) -> None:
    ref[...] = value


def nested_shard_map(x: jax.Array) -> jax.Array:
    return jax.shard_map(
        lambda t: lax.psum(t * lax.axis_index("x"), "x"),
        in_specs=P("x"),
        out_specs=P(),
        axis_names={"x"},
        check_vma=False,
    )(x)


def in_scan(x: jax.Array, start: jax.Array, length: int = 3) -> jax.Array:
    return lax.scan(lambda c, _: (psum(c + x), None), start, None, length=length)[0]


def ref_program(write: Callable[[Any, jax.Array, jax.Array], Any], *, start: str = "m") -> Any:
    """``fn(x, m)`` that returns a Ref's content after ``write(ref, x, m)``."""

    def fn(x: jax.Array, m: jax.Array) -> jax.Array:
        ref = jax.new_ref({"x": x, "m": m}[start])
        write(ref, x, m)
        return ref[...]

    return fn
