"""Puts the steps that were read onto the replicas' devices.

One placement for each leaf. An adopted buffer belongs to the device from then
on, so what does not belong to us is copied first. The CPU adopts only what is
aligned and copies the rest itself, so a copy is made aligned: one is enough.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from replicax.backend import compat, host_memory
from replicax.backend.mesh import ReplicaMesh
from replicax.core import nest
from replicax.input import splitting
from replicax.input.splitting import BatchSplit
from replicax.input.steps import HostStep, Share, divided
from replicax.values.distributed import PerReplica

_MAX_MAKERS = 64


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
        self._makers: dict[Any, Any] = {}

    def __call__(self, step: HostStep) -> Any:
        """The nest of values that the step is handed out as."""
        with compat.concretely():
            return nest.unflatten(step.structure, [self._value(share) for share in step.shares])

    def _value(self, share: Share) -> Any:
        array = share.whole if share.parts is None else share.parts[0]
        is_alone = self._mesh.num_replicas == 1
        if not self._to_device or splitting.is_on_host(array):
            parts = [self._own(part) for part in share.local_parts()]
            return parts[0] if is_alone else PerReplica(self._mesh, components=parts)
        if is_alone:
            return self._bare(self._adoptable(np.asarray(share.local_parts()[0])))
        return self._maker(share.shapes, array.dtype)(self._packed(share))

    def _bare(self, host: np.ndarray) -> jax.Array:
        """An ordinary array on the device of the one replica."""
        placed = jax.make_array_from_callback(host.shape, self._mesh.replicated, lambda _: host)
        key = (host.shape, host.dtype)
        free = self._makers.get(key)
        if free is None:
            free = self._remember(key, compat.uncommitted_first(placed))
        return free(placed)

    def _packed(self, share: Share) -> jax.Array:
        """One array over all devices; every worker brings the part of its own."""
        is_even = all(shape == share.shapes[0] for shape in share.shapes)
        largest = share.shapes[0] if is_even else _largest(share.shapes)
        rows = largest[0] if largest else 1
        if is_even and share.whole is not None:
            host = self._adoptable(np.asarray(share.whole))
        else:
            host = _padded(share, largest, rows)
        size = rows * self._mesh.num_replicas
        if size == len(host):  # the rows of all workers are here
            of_device = lambda index: host[index[0]]  # noqa: E731
        else:
            first = share.local.start * rows
            of_device = lambda index: host[_rows(index, size, first)]  # noqa: E731
        return jax.make_array_from_callback((size, *largest[1:]), self._mesh.per_replica, of_device)

    def _own(self, array: Any) -> Any:
        if isinstance(array, np.ndarray) and not self._owns_batches:
            return array.copy()
        return array

    def _adoptable(self, array: np.ndarray) -> np.ndarray:
        """The array if it is ours to give away, else a copy."""
        if self._owns_batches:
            return array
        copied = host_memory.aligned(array.shape, array.dtype)
        np.copyto(copied, array)
        return copied

    def _maker(self, shapes: Any, dtype: Any) -> Any:
        make = self._makers.get((shapes, dtype))
        if make is None:
            make = self._remember((shapes, dtype), PerReplica.maker(self._mesh, shapes))
        return make

    def _remember(self, key: Any, maker: Any) -> Any:
        if len(self._makers) >= _MAX_MAKERS:
            self._makers.clear()
        self._makers[key] = maker
        return maker


def _rows(index: Any, size: int, first: int) -> slice:
    start, stop, _ = index[0].indices(size)
    return slice(start - first, stop - first)


def _largest(shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return tuple(max(sizes) for sizes in zip(*shapes, strict=True))


def _padded(share: Share, largest: tuple[int, ...], rows: int) -> np.ndarray:
    """The parts of this worker in one array, each padded to the largest.

    On the host: on the devices each new shape would be a program of its own.
    """
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
