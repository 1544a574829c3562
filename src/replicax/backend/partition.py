"""How a value is cut into pieces, one for each logical device of a replica.

A layout is a number of pieces for each dim, or a `PartitionSpec` over the logical axes of the mesh.
Both become a `PartitionSpec` here, checked against the shape of what is cut. Who is cut, and when,
`strategies.base` (values in a step) and `engine.storage` (variables) say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from replicax.backend import placement
from replicax.backend.mesh import ReplicaMesh
from replicax.core.names import REPLICA_AXIS
from replicax.jax_internals.arrays import uncommitted
from replicax.jax_internals.traces import concretely

Layout = Sequence[int] | PartitionSpec
"""The number of pieces of each dim, or a `PartitionSpec` over logical axes."""


def checked_pieces(partition_dimensions: Any, mesh: ReplicaMesh) -> list[int]:
    """`partition_dimensions` as a list, if it gives every logical device one piece.

    Raises:
        ValueError: If they are no positive ints, or their product is another number.
    """
    is_list = isinstance(partition_dimensions, Iterable)
    pieces: list[Any] = list(partition_dimensions) if is_list else [None]
    if any(isinstance(p, bool) or not isinstance(p, int) or p < 1 for p in pieces):
        raise ValueError(
            f"partition_dimensions is {partition_dimensions!r}; expected ints of at least 1."
        )
    count = mesh.num_logical_devices
    if math.prod(pieces) != count:
        raise ValueError(
            f"partition_dimensions is {pieces}, whose product is {math.prod(pieces)}; a replica "
            f"has {count} logical device{'s' if count > 1 else ''} here, and the product must be "
            "that number."
        )
    return pieces


def require_fit(pieces: Sequence[int], shape: tuple[int, ...], what: str) -> None:
    """Raises unless something of `shape` can be cut into `pieces`.

    Raises:
        ValueError: If there is not one number for each dim, or a dim cannot be divided by it.
    """
    if len(shape) != len(pieces):
        raise ValueError(
            f"partition_dimensions is {list(pieces)}, for {len(pieces)} dims; {what} has shape "
            f"{shape}, and needs one number for each of its {len(shape)} dims."
        )
    for dim, (size, piece) in enumerate(zip(shape, pieces, strict=True)):
        if size % piece:
            raise ValueError(
                f"dim {dim} of {what}, which has shape {shape}, is {size}, which cannot be divided "
                f"by {piece}, as partition_dimensions {list(pieces)} asks."
            )


def spec_of_pieces(pieces: Sequence[int], mesh: ReplicaMesh) -> PartitionSpec:
    """The axes that cut each dim into its number of pieces."""
    sizes = dict(mesh.mesh.shape)
    free = list(mesh.logical_axes)
    axes: list[tuple[str, ...] | None] = []
    for piece in pieces:
        own: list[str] = []
        while piece > 1:
            axis = next(name for name in free if piece % sizes[name] == 0)
            free.remove(axis)
            own.append(axis)
            piece //= sizes[axis]
        axes.append(tuple(own) or None)
    return PartitionSpec(*axes)


def pieces_of(spec: PartitionSpec, rank: int, mesh: ReplicaMesh) -> tuple[int, ...]:
    """Into how many pieces each of `rank` dims is cut.

    Example:
        >>> from replicax.backend.mesh import logical_mesh
        >>> mesh = logical_mesh((tuple(jax.devices()[:4]),))
        >>> pieces_of(PartitionSpec(("logical_0", "logical_1")), 2, mesh)
        (4, 1)
    """
    sizes = dict(mesh.mesh.shape)
    numbers = [math.prod(sizes[axis] for axis in _axes_of(entry)) for entry in spec]
    return (*numbers, *[1] * (rank - len(numbers)))


def spec_for(
    layout: Layout, shape: tuple[int, ...], mesh: ReplicaMesh, what: str
) -> PartitionSpec | None:
    """The `PartitionSpec` of `layout` for something of `shape`; None if nothing is cut.

    Raises:
        ValueError: If it does not fit the shape or the logical devices.
    """
    if isinstance(layout, PartitionSpec):
        check_axes(layout, mesh)
        if len(layout) > len(shape):
            raise ValueError(
                f"{layout} is for {len(layout)} dims; {what} has shape {shape}, of {len(shape)}."
            )
        require_fit(pieces_of(layout, len(shape), mesh), shape, what)
        spec = layout
    else:
        pieces = checked_pieces(layout, mesh)
        require_fit(pieces, shape, what)
        spec = spec_of_pieces(pieces, mesh)
    return spec if any(_axes_of(entry) for entry in spec) else None


def check_axes(spec: PartitionSpec, mesh: ReplicaMesh) -> None:
    """Raises unless `spec` names logical axes of `mesh`, each once.

    Raises:
        ValueError: If it names others, or one of them twice.
    """
    axes = [axis for entry in spec for axis in _axes_of(entry)]
    known = mesh.logical_axes
    unknown = [axis for axis in axes if axis not in known]
    if unknown:
        there = f"has the axes {', '.join(map(repr, known))}" if known else "has no axes"
        raise ValueError(
            f"{spec} names the axis {unknown[0]!r}; a replica of {mesh.num_logical_devices} "
            f"logical device{'s' if known else ''} {there}."
        )
    if len(set(axes)) < len(axes):
        raise ValueError(f"{spec} names an axis twice; an axis can cut one dim only.")


def _axes_of(entry: Any) -> tuple[str, ...]:
    """The axes of one entry of a `PartitionSpec`."""
    if entry is None:
        return ()
    return entry if isinstance(entry, tuple) else (entry,)


# -- arrays in pieces --------------------------------------------------------------------------


def sharding_of(spec: PartitionSpec, mesh: ReplicaMesh, *, per_replica: bool) -> NamedSharding:
    """The layout over all devices of what is cut by `spec` within each replica."""
    return NamedSharding(mesh.mesh, PartitionSpec(REPLICA_AXIS, *spec) if per_replica else spec)


def in_pieces(
    values: Sequence[Any], shape: tuple[int, ...], mesh: ReplicaMesh, sharding: NamedSharding
) -> jax.Array:
    """One array of `shape` out of a whole value for each replica of this worker.

    Each device gets a copy of its own piece, and nothing else.
    """
    hosts = {
        device: np.asarray(value)
        for value, row in zip(values, mesh.local_logical_devices, strict=True)
        for device in row
    }
    piece = sharding.shard_shape(shape)
    parts = []
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        assert index is not None
        own = hosts[device][_within_replica(index, hosts[device])]
        parts.append(placement.own_copy(own.reshape(piece), device))
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def gathered(array: jax.Array, index: int, shape: tuple[int, ...], mesh: ReplicaMesh) -> jax.Array:
    """The value of `shape` that one replica of this worker has, whole, on its first device.

    A copy, uncommitted: nobody else sees its buffer.
    """
    row = mesh.local_logical_devices[index]
    whole = np.empty(shape, array.dtype)
    for shard in array.addressable_shards:
        if shard.device in row:
            part = whole[_within_replica(shard.index, whole)]
            part[...] = np.asarray(shard.data).reshape(part.shape)
    with concretely():
        return uncommitted(jax.device_put(whole, row[0]))


def _within_replica(index: tuple[slice, ...], value: np.ndarray) -> tuple[slice, ...]:
    """The part of `index` after the replica dim, if there is one."""
    return index[len(index) - value.ndim :]
