"""Reduces and gathers distributed values outside ``run``.

Works on concrete values and on values inside a whole-program trace alike; in a
replica function `context` uses the collectives of the backend directly.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax.backend import collectives, placement
from replicax.backend.collectives import Reduction
from replicax.backend.mesh import ReplicaMesh
from replicax.backend.runahead import launch
from replicax.core.enums import ReduceOp
from replicax.core.errors import ReductionError
from replicax.values.distributed import DistributedValues, Mirrored, PerReplica, Shape
from replicax.values.operators import plain
from replicax.values.traced import TracedPerReplica

Axis = int | tuple[int, ...] | None


def check_axis(axis: Any, shape: Shape) -> Axis:
    """`axis` with non-negative entries, checked against one component's shape.

    Raises:
        ReductionError: If it is no int, tuple of ints or None, or out of range.
    """
    if axis is None:
        return None
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    for dim in axes:
        if isinstance(dim, bool) or not isinstance(dim, (int, np.integer)):
            raise ReductionError(f"axis is {axis!r}; expected None, an int or a tuple of ints.")
        if not -len(shape) <= dim < len(shape):
            raise ReductionError(
                f"axis {dim} is out of range for a component of shape {shape}. Use axis=None to "
                "reduce across replicas only."
            )
    return tuple(int(dim) % len(shape) for dim in axes)


def reduce_leaf(
    op: ReduceOp, value: Any, axis: Axis, mesh: ReplicaMesh, reduction: Reduction
) -> jax.Array:
    """One array: `value` combined across the replicas and, with `axis`, over that dim.

    A value that is the same on every replica counts once per replica.
    """
    if isinstance(value, DistributedValues):
        value = value.as_components()
    if isinstance(value, TracedPerReplica):
        return value.reduce(op, check_axis(axis, value.local.shape), reduction)
    if isinstance(value, PerReplica):
        return _reduce_per_replica(op, value, axis, reduction)
    array = jnp.asarray(plain(value))
    axis = check_axis(axis, array.shape)
    if op is ReduceOp.MEAN:
        mean_dtype = collectives.as_mean_dtype(array.dtype)
        if axis is None:
            return array.astype(mean_dtype)
        return _divide(array.sum(axis, dtype=mean_dtype), _count(array.shape, axis))
    if axis is not None:
        array = array.sum(axis)
    array = array.astype(jnp.int32) if array.dtype == bool else array
    return array * jnp.asarray(mesh.num_replicas, array.dtype)


def _reduce_per_replica(
    op: ReduceOp, value: PerReplica, axis: Axis, reduction: Reduction
) -> jax.Array:
    shapes = value.shapes
    axis = check_axis(axis, shapes[0])
    if axis is None and value.is_uneven:
        raise ReductionError(
            f"components have different shapes {list(shapes)} and cannot be combined elementwise. "
            "Pass axis=0 to reduce over the batch dim too."
        )
    if value.is_uneven:
        assert axis is not None
        return _reduce_uneven(op, value, axis)
    packed = value.packed()
    scalar = not shapes[0]
    reducer = _reducer(op, axis, value.mesh, scalar, reduction)
    if isinstance(packed, Tracer):
        return reducer(packed)[1]
    return placement.one_device(launch(reducer, packed))


@functools.cache
def _reducer(
    op: ReduceOp, axis: Axis, mesh: ReplicaMesh, scalar: bool, reduction: Reduction
) -> Any:
    def component(part: jax.Array) -> tuple[jax.Array, jax.Array]:
        local = part.reshape(()) if scalar else part
        count = 1
        if axis is not None:
            count = _count(local.shape, axis)
            local = local.sum(axis)
        if op is ReduceOp.MEAN:
            local = local.astype(collectives.as_mean_dtype(local.dtype))
        (total,) = collectives.all_reduce(ReduceOp.SUM, [local], mesh.num_replicas, reduction)
        if op is ReduceOp.MEAN:
            total = _divide(total, count * mesh.num_replicas)
        return jnp.zeros((), jnp.int32), total

    return jax.jit(collectives.per_replica_map(component, mesh, replicated_out=True))


def _reduce_uneven(op: ReduceOp, value: PerReplica, axis: Axis) -> jax.Array:
    assert isinstance(axis, tuple)
    parts = [jnp.sum(jnp.asarray(part), axis) for part in value.values]
    if len({part.shape for part in parts}) > 1:
        raise ReductionError(
            f"components of shapes {list(value.shapes)} still differ after reducing over axis "
            f"{axis}: {[part.shape for part in parts]}."
        )
    total = functools.reduce(jnp.add, parts)
    if op is ReduceOp.SUM:
        return total
    count = sum(_count(shape, axis) for shape in value.shapes)
    return _divide(total.astype(collectives.as_mean_dtype(total.dtype)), count)


def _count(shape: Shape, axis: Sequence[int] | Axis) -> int:
    assert isinstance(axis, tuple)
    return math.prod(shape[dim] for dim in axis)


def _divide(total: jax.Array, count: int) -> jax.Array:
    return (total / max(count, 1)).astype(collectives.as_mean_dtype(total.dtype))


def gather_leaf(value: Any, axis: int, mesh: ReplicaMesh) -> jax.Array:
    """One array: the components of all replicas, concatenated along `axis`."""
    if isinstance(value, DistributedValues):
        value = value.as_components()
    if isinstance(value, PerReplica):
        parts = [jnp.asarray(part) for part in value.values]
    elif isinstance(value, Mirrored):
        parts = [value.read_value()] * mesh.num_replicas
    else:
        parts = [jnp.asarray(plain(value))] * mesh.num_replicas
    check_gather(axis, [part.shape for part in parts])
    return jnp.concatenate(parts, axis=axis)


def check_gather(axis: Any, shapes: Sequence[Shape]) -> None:
    """Raises unless components of these shapes can be concatenated along `axis`.

    Raises:
        ReductionError: For scalars, an axis out of range, or other dims that differ.
    """
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
        raise ReductionError(f"gather needs an int axis; got {axis!r}.")
    for shape in shapes:
        if not -len(shape) <= axis < len(shape):
            raise ReductionError(
                f"gather along axis {axis} needs components with that dim; got shape {shape}. "
                "Give scalars a dim first, for example with jnp.reshape(x, (1,))."
            )
    rests = {shape[: axis % len(shape)] + shape[axis % len(shape) + 1 :] for shape in shapes}
    if len(rests) > 1:
        raise ReductionError(
            f"gather along axis {axis} needs components that agree in every other dim; got shapes "
            f"{list(shapes)}."
        )
