"""Gathers components of different shapes from all replicas.

A collective needs one shape, so each component travels padded to the largest one and is cut to
its true shape on arrival. Plain JAX operations: it can be differentiated, and in ``lockstep`` the
all_gather inside has the same shape in every variant.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import lax

from replicax.backend import collectives
from replicax.core.errors import ReductionError


def gather_components(
    x: jax.Array,
    *,
    kind_shapes: Sequence[tuple[int, ...]],
    kind_of_replica: Sequence[int],
    axis: str,
) -> tuple[jax.Array, ...]:
    """The components of all replicas, in replica order, each with its true shape.

    The gradient of a component is the sum over all replicas of its cotangents.

    Args:
        x: This replica's component.
        kind_shapes: The shape of the component on each kind of replica; all of one rank.
        kind_of_replica: The kind of each replica.
        axis: The mesh axis that counts the replicas.
    """
    if len({len(shape) for shape in kind_shapes}) != 1 or tuple(x.shape) not in kind_shapes:
        raise ReductionError(
            f"A component of shape {tuple(x.shape)} cannot be gathered with components of shapes "
            f"{tuple(kind_shapes)}. Give every replica a component of the same rank."
        )
    largest = tuple(map(max, zip(*kind_shapes, strict=True)))
    padding = [(0, most - size, 0) for size, most in zip(x.shape, largest, strict=True)]
    padded = lax.pad(x, jax.numpy.zeros((), x.dtype), padding)
    gathered = collectives.gathered(padded, axis=axis)
    return tuple(
        lax.slice(gathered[replica], (0,) * x.ndim, kind_shapes[kind])
        for replica, kind in enumerate(kind_of_replica)
    )
