"""Computes values on one logical device of each replica only, where the user asked for that.

A mark in the trace says for which value and which device. When the program is emitted, the
operation that makes the value becomes a branch that this device alone takes, and the others get
what it has made. XLA has no layout for that: a value of a partitioned program is on all devices.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from replicax.backend import collectives
from replicax.backend.mesh import REPLICATED, ReplicaMesh
from replicax.core.names import REPLICA_AXIS
from replicax.engine.analysis.varying import is_collective
from replicax.jax_internals.primitives import (
    Primitive,
    differentiate_as_identity,
    lower_as_identity,
)
from replicax.jax_internals.programs import (
    ClosedJaxpr,
    Jaxpr,
    Literal,
    eval_jaxpr,
    is_ref,
    origin_of,
    sub_jaxprs,
)

assigned_p = Primitive("replicax_assigned")
assigned_p.def_abstract_eval(lambda value, *, logical_device_id: value)
lower_as_identity(assigned_p)  # where replicas take different branches
differentiate_as_identity(assigned_p)

_OF_MANY = frozenset({"sharding_constraint", "shard_map"})


def assigned(value: Any, logical_device_id: int) -> Any:
    """`value` of a compiled replica function, marked to be made on this logical device."""
    return assigned_p.bind(value, logical_device_id=logical_device_id)


def evaluated(jaxpr: Any, args: Sequence[Any], mesh: ReplicaMesh) -> list[Any]:
    """The outputs of a replica function's plain Jaxpr, in the trace that it is emitted into."""
    if not _has_marks(jaxpr):
        return eval_jaxpr(jaxpr, (), *args)
    return _Evaluation(mesh.logical_axes).run(jaxpr, (), args)


class _Evaluation:
    """Evaluates a program, with the operations that were assigned in branches of one device.

    Without axes, what one device makes: nothing is assigned again there.
    """

    def __init__(self, logical_axes: tuple[str, ...] = ()) -> None:
        self._axes = logical_axes

    def run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Any:
            if not isinstance(atom, Literal):
                return env[atom]
            kind: Any = atom.aval
            return atom.val if self._axes else np.asarray(atom.val, kind.dtype)

        devices = {
            eqn.invars[0]: eqn.params["logical_device_id"]
            for eqn in jaxpr.eqns
            if eqn.primitive is assigned_p and not isinstance(eqn.invars[0], Literal)
        }
        for eqn in jaxpr.eqns:
            values = [read(atom) for atom in eqn.invars]
            device = next((devices[out] for out in eqn.outvars if out in devices), None)
            with origin_of(eqn) if self._axes else contextlib.nullcontext():
                if eqn.primitive is assigned_p:
                    outs = values
                elif device is None or not self._axes or not _can_be_alone(eqn):
                    outs = self._bound(eqn, values)
                else:
                    outs = self._alone(eqn, values, device)
            env.update(zip(eqn.outvars, outs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _bound(self, eqn: Any, values: Sequence[Any]) -> list[Any]:
        if not self._axes and eqn.primitive.name == "jit":  # bound, it would name other axes
            body = eqn.params["jaxpr"]
            return self.run(body.jaxpr, body.consts, values)
        if not self._axes or any(map(_has_marks, sub_jaxprs(eqn.params))):
            params = {name: self._body(value) for name, value in eqn.params.items()}
            eqn = eqn.replace(params=params)
        outs = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
        return list(outs) if eqn.primitive.multiple_results else [outs]

    def _body(self, value: Any) -> Any:
        """A body traced anew, for its types name the axes of the mesh; one with Refs as it is."""
        if type(value) in (tuple, list):
            return type(value)(map(self._body, value))
        if not isinstance(value, ClosedJaxpr | Jaxpr):
            return value
        closed = value if isinstance(value, ClosedJaxpr) else ClosedJaxpr(value, ())
        if any(map(is_ref, closed.jaxpr.invars)):
            return value
        types = [
            jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype, weak_type=var.aval.weak_type)
            for var in closed.jaxpr.invars
        ]
        made = jax.make_jaxpr(lambda *args: self.run(closed.jaxpr, closed.consts, args))(*types)
        return made if isinstance(value, ClosedJaxpr) else made.jaxpr

    def _alone(self, eqn: Any, values: Sequence[Any], device: int) -> list[Any]:
        """What `eqn` makes, on this logical device; the others get it from there."""
        axes = self._axes

        def on_each(*values: Any) -> list[Any]:
            is_there = lax.axis_index(axes) == device
            made = lax.cond(
                is_there,
                lambda *values: _Evaluation()._bound(eqn, values),
                lambda *_: [jnp.zeros(var.aval.shape, var.aval.dtype) for var in eqn.outvars],
                *values,
            )
            return [_sent(value, is_there, axes) for value in made]

        return jax.shard_map(
            on_each,
            in_specs=REPLICATED,
            out_specs=REPLICATED,
            axis_names=set(axes),
            check_vma=False,
        )(*values)


def _has_marks(jaxpr: Any) -> bool:
    return any(
        eqn.primitive is assigned_p or any(map(_has_marks, sub_jaxprs(eqn.params)))
        for eqn in jaxpr.eqns
    )


def _can_be_alone(eqn: Any) -> bool:
    """Whether one device may make this alone: no other one and no host has a part in it."""
    types = [atom.aval for atom in (*eqn.invars, *eqn.outvars)]
    return (
        not eqn.effects
        and not any(map(is_ref, eqn.invars))
        and not any(jnp.issubdtype(kind.dtype, jax.dtypes.extended) for kind in types)
        and not _is_of_many(eqn)
    )


def _is_of_many(eqn: Any) -> bool:
    """Whether several devices have a part in this equation, at any depth."""
    return (
        eqn.primitive.name in _OF_MANY
        or is_collective(eqn, axis=REPLICA_AXIS)
        or any(any(map(_is_of_many, jaxpr.eqns)) for jaxpr in sub_jaxprs(eqn.params))
    )


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _sent(value: Any, is_there: Any, axes: tuple[str, ...]) -> Any:
    """What one device has made, bit by bit on all; elsewhere `value` is zeros."""
    return collectives.from_one(value, is_there, axes)


@_sent.defjvp
def _sent_jvp(axes: tuple[str, ...], primals: Any, tangents: Any) -> tuple[Any, Any]:
    tangent = tangents[0]
    wide = tangent.astype(collectives.summing_dtype(tangent.dtype))
    return _sent(*primals, axes), lax.psum(wide, axes).astype(tangent.dtype)
