"""Puts the steps that were read onto the replicas' devices.

One placement for each leaf. An adopted buffer belongs to the device from then
on, so what does not belong to us is copied first. The CPU adopts only what is
aligned and copies the rest itself, so a copy is made aligned: one is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from replicax.backend import host_memory
from replicax.backend.mesh import ReplicaMesh
from replicax.core import nest
from replicax.input import splitting
from replicax.input.splitting import BatchSplit
from replicax.input.steps import HostStep, Shape, Share, divided
from replicax.jax_internals.arrays import parts_placer, uncommitted_first
from replicax.jax_internals.traces import concretely
from replicax.values.distributed import PerReplica

_MAX_LAYOUTS = 64


class Placer:
    """Makes per-replica values of steps; for one replica, bare arrays.

    Args:
        mesh: The devices of the replicas of all workers.
        to_device: Whether arrays leave the host at all.
        owns_batches: Whether arrays may be adopted without a copy.
    """

    def __init__(self, mesh: ReplicaMesh, *, to_device: bool = True, owns_batches: bool) -> None:
        """Prepares for steps of the replicas on `mesh`."""
        self._mesh = mesh
        self._to_device = to_device
        self._owns_batches = owns_batches
        self._layouts: dict[Any, _Layout] = {}

    def __call__(self, step: HostStep) -> Any:
        """The nest of values that the step is handed out as."""
        with concretely():
            return nest.unflatten(step.structure, [self._value(share) for share in step.shares])

    def _value(self, share: Share) -> Any:
        array = share.whole if share.parts is None else share.parts[0]
        is_alone = self._mesh.num_replicas == 1
        if not self._to_device or splitting.is_on_host(array):
            parts = [self._own(part) for part in share.local_parts()]
            return parts[0] if is_alone else PerReplica(self._mesh, components=parts)
        key = (share.shapes, array.dtype)
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= _MAX_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[key] = _Layout(share, self._mesh)
        if layout.is_even and share.whole is not None:
            host = self._adoptable(np.asarray(share.whole))
        elif is_alone:
            host = self._adoptable(np.asarray(share.local_parts()[0]))
        else:
            host = _padded(share, layout.largest)
        return layout.value_of(host)

    def _own(self, array: Any) -> Any:
        """The array if it is ours to give away and the user may write to it, else a copy."""
        if isinstance(array, np.ndarray) and not (self._owns_batches and array.flags.writeable):
            return array.copy()
        return array

    def _adoptable(self, array: np.ndarray) -> np.ndarray:
        """The array if it is ours to give away, else a copy."""
        if self._owns_batches:
            return array
        copied = host_memory.aligned(array.shape, array.dtype)
        np.copyto(copied, array)
        return copied


class _Layout:
    """How leaves of some shapes and dtype get to the devices; found out once.

    Attributes:
        is_even: Whether the parts of all replicas have one shape.
        largest: The shape that each part is padded to.
    """

    def __init__(self, share: Share, mesh: ReplicaMesh) -> None:
        """The layout of leaves like this one."""
        self.is_even = all(shape == share.shapes[0] for shape in share.shapes)
        self.largest = share.shapes[0] if self.is_even else _largest(share.shapes)
        self._mesh = mesh
        self._make = None if mesh.num_replicas == 1 else PerReplica._maker(mesh, share.shapes)
        self._first_replica = share.local.start
        self._place: Callable[[Sequence[np.ndarray]], jax.Array] | None = None
        self._parts: list[Any] = []  # of the rows, one for each local device

    def value_of(self, host: np.ndarray) -> Any:
        """What is handed out: the rows of this worker's replicas, on their devices."""
        if self._place is not None:
            array = self._place([host[part] for part in self._parts])
        else:
            array = self._first_bare(host) if self._make is None else self._first_packed(host)
        return array if self._make is None else self._make(array)

    def _first_bare(self, host: np.ndarray) -> jax.Array:
        """An ordinary array on the device of the one replica."""
        placed = jax.make_array_from_callback(host.shape, self._mesh.replicated, lambda _: host)
        array = uncommitted_first(placed)(placed)
        self._parts = [...]
        self._place = parts_placer(array)
        return array

    def _first_packed(self, host: np.ndarray) -> jax.Array:
        """One array over all devices; every worker brings the part of its own."""
        rows = _num_rows(self.largest)
        size, first = rows * self._mesh.num_replicas, self._first_replica * rows
        shape, sharding = (size, *self.largest[1:]), self._mesh.per_replica

        def part_of(index: Any) -> slice:
            start, stop, _ = index[0].indices(size)
            return slice(start - first, stop - first)

        array = jax.make_array_from_callback(shape, sharding, lambda index: host[part_of(index)])
        indices = sharding.addressable_devices_indices_map(shape).values()
        self._parts = [part_of(index) for index in indices]
        self._place = parts_placer(array)
        return array


def _num_rows(shape: Shape) -> int:
    return shape[0] if shape else 1


def _largest(shapes: tuple[Shape, ...]) -> Shape:
    return tuple(max(sizes) for sizes in zip(*shapes, strict=True))


def _padded(share: Share, largest: Shape) -> np.ndarray:
    """The parts of this worker in one array, each padded to the largest.

    On the host: on the devices each new shape would be a program of its own.
    """
    rows = _num_rows(largest)
    parts = [np.asarray(part) for part in share.local_parts()]
    buffer = host_memory.aligned((rows * len(parts), *largest[1:]), parts[0].dtype)
    if any(part.shape != largest for part in parts):
        buffer[...] = 0
    for place, part in enumerate(parts):
        corner = (slice(place * rows, place * rows + (part.shape[0] if part.ndim else 1)),)
        buffer[corner + tuple(slice(size) for size in part.shape[1:])] = part
    return buffer


def distribute_batch(batch: Any, mesh: ReplicaMesh) -> Any:
    """`batch` with every leaf divided among the replicas; for one replica, bare arrays.

    Args:
        batch: A nest of arrays with the batch as dim 0; a list of numbers is an array.
        mesh: The devices of the replicas.

    Raises:
        BatchError: If a leaf is no array, a scalar, or of another batch size than the rest.
    """
    if not jax.tree_util.tree_leaves(batch):
        return batch
    leaves, structure = splitting.leaves_of(batch)
    splitting.require_one_size(batch, leaves)
    local = mesh.local_replicas
    split = BatchSplit.of(leaves[0].shape[0], num_replicas=mesh.num_replicas)
    if mesh.spans_workers:
        leaves = [leaf[split.slice_of(local)] for leaf in leaves]
    shares = [divided(leaf, split.sizes, local) for leaf in leaves]
    return Placer(mesh, owns_batches=False)(HostStep(structure, shares))
