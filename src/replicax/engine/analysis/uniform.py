"""Marks a value that must be the same on all replicas, in the middle of a traced program.

A replica that keeps its own part of a value takes for granted that the others cut the same one.
The mark changes nothing when the program runs. It is for the passes over the trace: `varying`
refuses it on a value that differs between replicas or that only some replicas reach, and
`numbering` on one that the variants of a replica function compute in different ways.
"""

from __future__ import annotations

from typing import Any

import jax

from replicax.core.errors import TraceError
from replicax.core.names import REPLICA_AXIS
from replicax.jax_internals.primitives import Primitive, lower_as_identity
from replicax.jax_internals.programs import user_line

uniform_p = Primitive("replicax_uniform")
uniform_p.def_abstract_eval(lambda value, *, axis_name, what: value)
lower_as_identity(uniform_p)


def uniform(value: jax.Array, what: str) -> jax.Array:
    """`value`, marked.

    Args:
        value: A value of a compiled replica function.
        what: What it is, for the error.
    """
    return uniform_p.bind(value, axis_name=(REPLICA_AXIS,), what=what)


def not_uniform(eqn: Any) -> TraceError:
    """The error about a mark on a value that is not the same on all replicas."""
    return TraceError(
        f"{eqn.params['what']} differs between replicas, at {user_line(eqn)}. It is split "
        "over the replicas, and their parts would be those of different values. Reduce the value "
        "first (ReplicaContext.all_reduce, or extended.reduce_to in merge_call), or create the "
        "variable with an aggregation."
    )
