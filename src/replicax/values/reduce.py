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

from replicax.backend import collectives, host_memory, placement, workers
from replicax.backend.collectives import Reduction
from replicax.backend.mesh import ReplicaMesh
from replicax.backend.runahead import RUN_AHEAD, launch
from replicax.core.enums import ReduceOp
from replicax.core.errors import ReductionError
from replicax.values.distributed import DistributedValues, PerReplica, Shape
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


def as_array(value: Any, name: str) -> jax.Array:
    """`value`, which is one for all replicas, as an array; of 64 bits only where JAX has these.

    Raises:
        BatchError: If it would be narrowed and does not fit.
    """
    value = plain(value)
    if isinstance(value, placement.Arrays):
        value = placement.narrowed(value, name)
    return value if isinstance(value, jax.Array) else jnp.asarray(value)


def reduce_leaf(
    op: ReduceOp, value: Any, axis: Axis, mesh: ReplicaMesh, reduction: Reduction
) -> jax.Array:
    """One array: `value` combined across the replicas and, with `axis`, over that dim.

    A value that is the same on every replica counts once per replica.
    """
    if isinstance(value, DistributedValues):
        value = value._as_components()
    if isinstance(value, TracedPerReplica):
        if axis is None:
            check_even(value)
        return value._reduce(op, check_axis(axis, value._local.shape), reduction)
    if isinstance(value, PerReplica) and not _is_empty(value):
        return _reduce_per_replica(op, value, axis, reduction)
    array = _one_component(value)
    axis = check_axis(axis, array.shape)
    if axis is None:
        (array,) = collectives.addable(op, [array])
        if op is ReduceOp.MEAN or mesh.num_replicas == 1:
            return array.astype(array.dtype) if array.weak_type else array
        total, dtype = array.astype(collectives.summing_dtype(array.dtype)), array.dtype
        count = 1
    else:
        total, dtype = collectives.sum_over_dims(op, array, axis)
        count = _count(array.shape, axis)
    if op is ReduceOp.SUM:
        total = total * jnp.asarray(mesh.num_replicas, total.dtype)
    return collectives.finished(op, total, dtype, count)


def reduce_to_all(op: ReduceOp, value: Any, mesh: ReplicaMesh, reduction: Reduction) -> jax.Array:
    """A concrete value combined across the replicas, with a copy on every device of the mesh.

    A program that adds leaves a copy on each of them; only other results are copied.
    """
    if isinstance(value, PerReplica) and not _is_empty(value):
        value._refuse_deleted("a per-replica value to reduce")
        check_even(value)
        packed = value._as_packed()
        is_plain = reduction.is_plain_sum
        total = _total_on_host(op, value, packed, large_only=True) if is_plain else None
        if reduction.custom is not None:
            total = reduce_leaf(op, value, None, mesh, reduction)
        if total is None:
            return _launch_reducer(op, [value], [packed], None, reduction)[0]
    else:
        total = reduce_leaf(op, value, None, mesh, reduction)
    return placement.replicate(total, mesh)


def _is_empty(value: PerReplica) -> bool:
    """Whether no replica has an element of it; XLA fails on programs of nothing but such values."""
    return not value._is_uneven and 0 in value.shapes[0]


def _one_component(value: Any) -> jax.Array:
    """What every replica has of a value that is the same on all of them."""
    if isinstance(value, PerReplica):
        return jnp.zeros(value.shapes[0], value.dtype)
    return as_array(value, "the value to reduce")


def reduce_leaves(
    op: ReduceOp, values: Sequence[Any], mesh: ReplicaMesh, reduction: Reduction
) -> list[Any]:
    """Every value combined across the replicas; small ones travel together."""
    results: list[Any] = [None] * len(values)
    values = [v._as_components() if isinstance(v, DistributedValues) else v for v in values]
    traced, packed = [], []
    for index, value in enumerate(values):
        if isinstance(value, TracedPerReplica):
            check_even(value)
            traced.append(index)
        elif isinstance(value, PerReplica) and not _is_empty(value):
            check_even(value)
            packed.append(index)
        else:
            results[index] = reduce_leaf(op, value, None, mesh, reduction)
    local = [values[index]._local for index in traced]
    for index, result in zip(
        traced, collectives.all_reduce(op, local, mesh.num_replicas, reduction), strict=True
    ):
        results[index] = result
    chosen = [values[index] for index in packed]
    for index, result in zip(packed, _reduce_packed(op, chosen, None, reduction), strict=True):
        results[index] = result
    return results


def check_even(value: PerReplica) -> None:
    """Raises unless all components have one shape.

    Raises:
        ReductionError: If they have not.
    """
    if value._is_uneven:
        raise ReductionError(
            f"components have different shapes {list(value.shapes)} and cannot be combined "
            "elementwise. Pass axis=0 to reduce over the batch dim too."
        )


def _reduce_per_replica(
    op: ReduceOp, value: PerReplica, axis: Axis, reduction: Reduction
) -> jax.Array:
    value._refuse_deleted("a per-replica value to reduce")
    axis = check_axis(axis, value.shapes[0])
    if axis is None:
        check_even(value)
    elif value._is_uneven:
        return _reduce_uneven(op, value, axis, reduction)
    return _reduce_packed(op, [value], axis, reduction)[0]


def _reduce_packed(
    op: ReduceOp, values: Sequence[PerReplica], axis: Axis, reduction: Reduction
) -> list[jax.Array]:
    if not values:
        return []
    packed = [value._as_packed() for value in values]
    if any(isinstance(array, Tracer) for array in packed):
        return _reducer_of(op, values, axis, reduction)(packed)[1]
    if axis is None and reduction.is_plain_sum:
        here = [
            _total_on_host(op, value, array) for value, array in zip(values, packed, strict=True)
        ]
        if any(total is not None for total in here):
            rest = [v for v, total in zip(values, here, strict=True) if total is None]
            others = iter(_reduce_packed(op, rest, axis, reduction))
            return [next(others) if total is None else total for total in here]
    if axis is None and reduction.custom is not None and values[0].mesh.num_replicas > 1:
        return reduction.custom(op, values)
    totals = _launch_reducer(op, values, packed, axis, reduction)
    return [placement.one_device(total) for total in totals]


def _launch_reducer(
    op: ReduceOp,
    values: Sequence[PerReplica],
    packed: list[jax.Array],
    axis: Axis,
    reduction: Reduction,
) -> list[jax.Array]:
    reducer = _reducer_of(op, values, axis, reduction)
    _meet_before_first(f"a reduction ({op.name}, axis {axis})", values[0].mesh, reducer, packed)
    return launch(reducer, packed)


def _reducer_of(
    op: ReduceOp, values: Sequence[PerReplica], axis: Axis, reduction: Reduction
) -> Any:
    scalars = tuple(not value.shapes[0] for value in values)
    return _reducer(op, axis, values[0].mesh, scalars, reduction)


def _total_on_host(
    op: ReduceOp, value: PerReplica, packed: jax.Array, *, large_only: bool = False
) -> jax.Array | None:
    """The sum or mean of components where they are; None if a program is better."""
    mesh = value.mesh
    is_mean = op is ReduceOp.MEAN
    if mesh.num_replicas == 1 or mesh.spans_workers:
        return None
    if is_mean and not jnp.issubdtype(packed.dtype, jnp.inexact):
        return None
    parts = placement.parts_of(packed, mesh)
    divisor = mesh.num_replicas if is_mean else 1
    if host_memory.can_add(parts):
        return host_memory.total(parts, divisor=divisor)
    if large_only:
        return None
    return host_memory.total_if_ready(parts, value.shapes[0], divisor=divisor)


@functools.cache
def _reducer(
    op: ReduceOp, axis: Axis, mesh: ReplicaMesh, scalars: tuple[bool, ...], reduction: Reduction
) -> Any:
    def components(parts: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
        locals_ = [p.reshape(()) if scalar else p for p, scalar in zip(parts, scalars, strict=True)]
        if axis is None:
            totals = collectives.all_reduce(op, locals_, mesh.num_replicas, reduction)
            return jnp.zeros((), jnp.int32), totals
        sums = [collectives.sum_over_dims(op, local, axis) for local in locals_]
        totals = collectives.all_reduce(
            ReduceOp.SUM, [total for total, _ in sums], mesh.num_replicas, reduction
        )
        counts = [_count(local.shape, axis) * mesh.num_replicas for local in locals_]
        return jnp.zeros((), jnp.int32), [
            collectives.finished(op, total, dtype, count)
            for total, (_, dtype), count in zip(totals, sums, counts, strict=True)
        ]

    return jax.jit(collectives.per_replica_map(components, mesh, replicated_out=True))


def _reduce_uneven(op: ReduceOp, value: PerReplica, axis: Axis, reduction: Reduction) -> jax.Array:
    assert isinstance(axis, tuple)
    rests = [_without(shape, axis) for shape in value.shapes]
    if len(set(rests)) > 1:
        raise ReductionError(
            f"components of shapes {list(value.shapes)} still differ after reducing over axis "
            f"{axis}: {rests}."
        )
    is_here = not value.mesh.spans_workers or value._is_traced
    values = value._all_values() if is_here else value.values
    arrays = [jnp.asarray(part).astype(value.dtype) for part in values]
    sums = [collectives.sum_over_dims(op, array, axis) for array in arrays]
    parts = [total for total, _ in sums]
    if is_here:
        total = functools.reduce(jnp.add, parts)
    else:
        whole = PerReplica(value.mesh, components=parts, shapes=rests)
        (total,) = _reduce_packed(ReduceOp.SUM, [whole], None, reduction)
    count = sum(_count(shape, axis) for shape in value.shapes)
    return collectives.finished(op, total, sums[0][1], count)


def _without(shape: Shape, axis: tuple[int, ...]) -> Shape:
    return tuple(size for dim, size in enumerate(shape) if dim not in axis)


def _count(shape: Shape, axis: Sequence[int] | Axis) -> int:
    assert isinstance(axis, tuple)
    return math.prod(shape[dim] for dim in axis)


def gather_leaf(value: Any, axis: int, mesh: ReplicaMesh) -> jax.Array:
    """One array: the components of all replicas, concatenated along `axis`."""
    if isinstance(value, DistributedValues):
        value = value._as_components()
    if isinstance(value, PerReplica):
        value._refuse_deleted("a per-replica value to gather")
        check_gather(axis, value.shapes)
        parts = [as_array(part, "the value to gather") for part in _everywhere(value)]
    else:
        parts = [as_array(value, "the value to gather")] * mesh.num_replicas
    check_gather(axis, [part.shape for part in parts])
    return jnp.concatenate(parts, axis=axis)


def _everywhere(value: PerReplica) -> Sequence[jax.Array]:
    """The components of all replicas, of all workers."""
    if not value.mesh.spans_workers or value._is_traced:
        return value._all_values()
    packed, replicator = value._as_packed(), _replicator(value.mesh)
    _meet_before_first("a gathering", value.mesh, replicator, packed)
    whole = placement.one_device(RUN_AHEAD.launch_and_wait(replicator, packed))
    rows = len(whole) // value.mesh.num_replicas
    return [
        whole[i * rows :][tuple(slice(size) for size in shape)] if shape else whole[i]
        for i, shape in enumerate(value.shapes)
    ]


@functools.cache
def _replicator(mesh: ReplicaMesh) -> Any:
    return jax.jit(lambda array: array, out_shardings=mesh.replicated)


def first_component(value: Any) -> Any:
    """Replica 0's component of a concrete value, on every worker."""
    if not isinstance(value, PerReplica):
        return value
    mesh = value.mesh
    if not mesh.spans_workers:
        return value._select(0)
    shape, packed, first = value.shapes[0], value._as_packed(), _first(mesh)
    _meet_before_first("the choice of the first replica's value", mesh, first, packed)
    whole = placement.one_device(launch(first, packed))
    return whole[tuple(slice(size) for size in shape)] if shape else whole.reshape(())


@functools.cache
def _first(mesh: ReplicaMesh) -> Any:
    def component(part: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros((), jnp.int32), collectives.from_first_replica(part)

    return jax.jit(collectives.per_replica_map(component, mesh, replicated_out=True))


_met: set[Any] = set()


def _meet_before_first(what: str, mesh: ReplicaMesh, program: Any, arrays: Any) -> None:
    """Waits for the other workers before a program is launched for the first time.

    They must be about to launch it too: one alone would wait in it until its time is up. It is
    compiled by then, so that no worker waits in it for the compiler of another.

    Raises:
        WorkersDifferError: If a worker is about to do something else.
    """
    if not mesh.spans_workers:
        return
    leaves = jax.tree.leaves(arrays)
    key = program, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    if key not in _met:
        program.lower(arrays).compile()
        types = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves)
        workers.require().exchange(f"{what} of {types}", None)
        _met.add(key)


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
