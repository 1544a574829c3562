"""Divides one global batch among replicas.

A batch of m goes to N replicas in contiguous chunks of ceil(m / N); the last ones
may be short or empty. Nothing is invented and nothing is dropped.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from replicax.backend import placement
from replicax.backend.mesh import ReplicaMesh
from replicax.core import nest
from replicax.core.errors import BatchError
from replicax.values.distributed import PerReplica


@dataclasses.dataclass(frozen=True, slots=True)
class BatchSplit:
    """How many examples of one global batch each replica receives.

    Attributes:
        sizes: Examples per replica, in replica order.

    Example:
        >>> BatchSplit.of(7, num_replicas=3)
        BatchSplit(sizes=(3, 3, 1))
        >>> BatchSplit.of(4, num_replicas=3).offsets
        (0, 2, 4)
    """

    sizes: tuple[int, ...]

    @classmethod
    def of(cls, batch_size: int, *, num_replicas: int) -> BatchSplit:
        """Contiguous chunks of ceil(batch_size / num_replicas)."""
        chunk = -(-batch_size // num_replicas)
        starts = (min(replica * chunk, batch_size) for replica in range(num_replicas))
        return cls(tuple(min(chunk, batch_size - start) for start in starts))

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each replica's examples begin."""
        return tuple(sum(self.sizes[:replica]) for replica in range(len(self.sizes)))


def distribute_batch(batch: Any, mesh: ReplicaMesh) -> Any:
    """`batch` with every leaf divided among the replicas; for one replica, bare arrays.

    Args:
        batch: A nest of arrays with the batch as dim 0; a list of numbers is an array.
        mesh: The devices of the replicas.

    Raises:
        BatchError: If a leaf is no array, a scalar, or of another batch size than the rest.
    """
    batch = jax.tree_util.tree_map(_as_array, batch, is_leaf=_is_leaf)
    pairs = nest.leaves_with_path(batch)
    leaves = [_as_batch(path, leaf) for path, leaf in pairs]
    _check_sizes([path for path, _ in pairs], leaves)
    divided = [_divide(leaf, mesh) for leaf in leaves]
    return nest.unflatten(nest.flatten(batch)[1], divided)


def _is_leaf(node: object) -> bool:
    return nest.is_leaf(node) or _is_list_of_numbers(node)


def _is_list_of_numbers(node: object) -> bool:
    if not isinstance(node, list):
        return False
    return all(isinstance(x, (bool, int, float, str)) or _is_list_of_numbers(x) for x in node)


def _as_array(leaf: Any) -> Any:
    return np.asarray(leaf) if isinstance(leaf, list) else leaf


def _as_batch(path: str, leaf: Any) -> Any:
    name = f"leaf {path or '(the batch itself)'} of the batch"
    if not isinstance(leaf, jax.Array):
        if isinstance(leaf, nest.NestLeaf):
            raise BatchError(f"{name} is {type(leaf).__name__}; expected an array on the host.")
        array = np.asarray(leaf)
        if array.dtype.kind in "OV" and not placement.is_array_like(array):
            raise BatchError(f"{name} is {leaf!r}, which is no array of one shape.")
        leaf = placement.narrowed(array, name)
    if leaf.ndim == 0:
        raise BatchError(
            f"{name} is a scalar and cannot be divided among replicas. Batch the examples first, "
            "so that dim 0 counts them."
        )
    return leaf


def _check_sizes(paths: list[str], leaves: list[Any]) -> None:
    sizes = {leaf.shape[0] for leaf in leaves}
    if len(sizes) > 1:
        listing = ", ".join(
            f"{path or 'batch'}: {leaf.shape[0]}" for path, leaf in zip(paths, leaves, strict=True)
        )
        raise BatchError(
            f"leaves of one batch must have the same number of examples in dim 0; got {listing}."
        )


def _divide(leaf: Any, mesh: ReplicaMesh) -> Any:
    if mesh.num_replicas == 1:
        if leaf.dtype.kind in "USO":
            return leaf
        return placement.one_device(jax.device_put(np.array(leaf, copy=True), mesh.devices[0]))
    split = BatchSplit.of(leaf.shape[0], num_replicas=mesh.num_replicas)
    host = np.asarray(leaf)
    parts = [
        host[start : start + size] for start, size in zip(split.offsets, split.sizes, strict=True)
    ]
    if leaf.dtype.kind in "USO":  # strings stay on the host
        return PerReplica(mesh, components=parts)
    shapes = [part.shape for part in parts]
    # Padded here, on the host: on the devices each new shape would be a program of its own.
    rest = [(0, 0)] * (host.ndim - 1)
    padded = [np.pad(part, [(0, split.sizes[0] - len(part)), *rest]) for part in parts]
    return PerReplica(mesh, packed=placement.assemble(padded, mesh), shapes=shapes)
