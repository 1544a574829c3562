"""Distributed values inside the trace of a replica function.

There is one trace for all replicas, so a per-replica value is simply the local
tracer, and acting across replicas is a collective. They exist only between
entering and leaving a ``merge_fn``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from replicax.backend import collectives
from replicax.backend.collectives import Reduction
from replicax.backend.mesh import ReplicaMesh
from replicax.core.enums import ReduceOp
from replicax.values.distributed import Mirrored, PerReplica, Shape, register_as_array

GatherComponents = Callable[[jax.Array], tuple[jax.Array, ...]]


class TracedPerReplica(PerReplica):
    """A per-replica value of a replica function that is being traced."""

    __slots__ = ("_gather", "_local")

    def __init__(
        self,
        mesh: ReplicaMesh,
        local: Any,
        gather: GatherComponents,
        shapes: Sequence[Shape] | None = None,
    ) -> None:
        """Wraps `local`, the value of the replica that executes the program.

        `gather` brings the components of all replicas together.
        """
        super().__init__(mesh)
        self._local = jnp.asarray(local)
        self._shapes = tuple(shapes or [self._local.shape] * mesh.num_replicas)
        self._gather = gather

    def __repr__(self) -> str:
        return f"PerReplica:{{each of {self.mesh.num_replicas} replicas: {self._local!r}}}"

    @property
    def values(self) -> tuple[jax.Array, ...]:
        """The components of all replicas, gathered."""
        if self._components is None:
            self._components = self._gather(self._local)
        return self._components

    @property
    def _is_traced(self) -> bool:
        """Always."""
        return True

    def _all_values(self) -> tuple[jax.Array, ...]:
        """The components of all replicas, gathered."""
        return self.values

    @property
    def dtype(self) -> Any:
        """The dtype of the components."""
        return self._local.dtype

    def _select(self, replica_id: Any) -> jax.Array:
        """The local component: the program is the same for every replica."""
        del replica_id
        return self._local

    def _reduce(self, op: ReduceOp, axis: Any, reduction: Reduction) -> jax.Array:
        """The value combined over all replicas and, with `axis`, over those dims."""
        local = self._local
        num_replicas = self.mesh.num_replicas
        if axis is None:
            return collectives.all_reduce(op, [local], num_replicas, reduction)[0]
        total, dtype = collectives.sum_over_dims(op, local, axis)
        count = jnp.asarray(math.prod(local.shape[dim] for dim in axis), total.dtype)
        # The count travels too: shapes, and so counts, may differ between replicas.
        sent = [total, count] if op is ReduceOp.MEAN else [total]
        total, *counted = collectives.all_reduce(ReduceOp.SUM, sent, num_replicas, reduction)
        return (total / jnp.maximum(counted[0], 1) if counted else total).astype(dtype)


class TracedMirrored(Mirrored):
    """A value of a traced replica function that is equal on every replica."""

    __slots__ = ()

    def __init__(self, mesh: ReplicaMesh, local: jax.Array) -> None:
        super().__init__(mesh, array=local)

    def __repr__(self) -> str:
        return f"Mirrored:{{each of {self.mesh.num_replicas} replicas: {self._array!r}}}"

    def _select(self, replica_id: Any) -> jax.Array:
        """The value itself."""
        del replica_id
        return self._replicated()


register_as_array(TracedMirrored)


def gather_equal_components(local: jax.Array, num_replicas: int) -> tuple[jax.Array, ...]:
    """The components of all replicas, for components of one shape."""
    gathered = collectives.gathered(local)
    return tuple(gathered[i] for i in range(num_replicas))
