"""Keeps values whole on every logical device, where replicas take different branches.

Within a replica XLA puts collectives wherever pieces of a value must be exchanged. In a branch that
only some replicas take, such a collective waits for the others for ever, although it concerns one
replica only. So a function with such a branch is not cut into pieces at all: what goes in and comes
out is whole, and so is everything between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax
from jax.sharding import NamedSharding

from replicax.backend.mesh import REPLICATED
from replicax.engine.trace.rewriting import rewritten
from replicax.jax_internals.programs import sub_jaxprs


def kept_whole(values: Sequence[Any]) -> list[Any]:
    """`values` of a replica, whole on every logical device, in a trace."""
    return [lax.with_sharding_constraint(value, REPLICATED) for value in values]


def asks_for_pieces(jaxpr: Any) -> bool:
    """Whether `jaxpr` asks for a value in pieces anywhere."""
    return any(
        any(eqn.params["sharding"].spec)
        if _is_layout(eqn)
        else any(map(asks_for_pieces, sub_jaxprs(eqn.params)))
        for eqn in jaxpr.eqns
    )


def without_pieces(jaxpr: Any) -> Any:
    """`jaxpr` with every layout that it asks for replaced by the whole value."""
    return rewritten(jaxpr, _whole)


def _whole(eqn: Any) -> Any:
    if not _is_layout(eqn):
        return eqn
    sharding = NamedSharding(eqn.params["sharding"].mesh, REPLICATED)
    own = {"sharding": sharding, "unconstrained_dims": frozenset()}
    return eqn.replace(params=eqn.params | own)


def _is_layout(eqn: Any) -> bool:
    """Whether `eqn` lays a value out over a mesh."""
    return eqn.primitive.name == "sharding_constraint" and isinstance(
        eqn.params["sharding"], NamedSharding
    )
