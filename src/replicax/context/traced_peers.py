"""How the replicas of a compiled run reach each other: collectives of the one program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from replicax.backend import collectives
from replicax.backend.collectives import Reduction
from replicax.backend.mesh import ReplicaMesh
from replicax.context import stack
from replicax.core import nest
from replicax.core.enums import ReduceOp
from replicax.core.names import REPLICA_AXIS
from replicax.core.options import bytes_per_pack_of
from replicax.execution.gather import gather_components
from replicax.execution.spmd import Variant
from replicax.values.operators import plain
from replicax.values.reduce import check_gather
from replicax.values.regroup import same_python_value
from replicax.values.traced import TracedMirrored, TracedPerReplica, gather_equal_components


class TracedPeers:
    """Implements `context.replica.Peers` for a replica function that is being traced.

    Remembers which tracers are equal on all replicas by construction, so that
    the run can return them as what they are.
    """

    def __init__(
        self, strategy: Any, mesh: ReplicaMesh, variant: Variant, reduction: Reduction
    ) -> None:
        """Peers of the replicas of `strategy` in the trace of `variant`."""
        self._strategy = strategy
        self._mesh = mesh
        self._variant = variant
        self._reduction = reduction
        self._mirrored: dict[int, Any] = {}
        self._shared: dict[int, Any] = {}

    @property
    def replica_id(self) -> Any:
        """A traced int32, or an int where it is known while tracing."""
        if self._mesh.num_replicas == 1:
            return 0
        if self._variant.replica_id is not None:
            return self._variant.replica_id
        self._variant.asked_replica_id = True
        return lax.axis_index(REPLICA_AXIS)

    def is_mirrored(self, leaf: Any) -> bool:
        """Whether `leaf` is the untouched result of a reduction."""
        return id(leaf) in self._mirrored

    def is_shared(self, leaf: Any) -> bool:
        """Whether `leaf` is one object that a merge_fn gave to all replicas."""
        return id(leaf) in self._shared

    def merge(
        self, merge_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs `merge_fn` in cross-replica context, in the same trace."""
        if self._mesh.num_replicas > 1:
            args, kwargs = nest.map_leaves(self._wrap, (args, kwargs))
        with stack.entered(stack.Entry(self._strategy, stack.Mode.MERGE)):
            result = merge_fn(self._strategy, *args, **kwargs)
        return nest.map_leaves(self._unwrap, result)

    def together(
        self,
        label: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        own: Any = None,
        alone: Callable[[], Any] | None = None,
    ) -> Any:
        """Runs `fn` in cross-replica context, in the same trace."""
        del label, alone
        return self.merge(lambda _, *args: fn(*args) if own is None else fn({}, *args), args, {})

    def _wrap(self, leaf: Any) -> Any:
        if isinstance(leaf, nest.NestLeaf) or self.is_shared(leaf):
            return leaf
        if self.is_mirrored(leaf):
            return TracedMirrored(self._mesh, leaf)
        if isinstance(leaf, (Tracer, np.ndarray, np.generic)):
            shapes = self._variant.exchange(leaf.shape)
            shapes = [shapes[kind] for kind in self._variant.kind_of_replica]
            return TracedPerReplica(self._mesh, leaf, self._gather, shapes)
        if isinstance(leaf, jax.Array):
            return leaf
        if not same_python_value(self._variant.exchange(leaf)) and isinstance(leaf, (int, float)):
            return TracedPerReplica(self._mesh, leaf, self._gather)
        return leaf

    def _unwrap(self, leaf: Any) -> Any:
        if isinstance(leaf, TracedPerReplica):
            return leaf.local
        if isinstance(leaf, TracedMirrored):
            return self._remember(leaf.array(), self._mirrored)
        if isinstance(leaf, Tracer):
            return self._remember(leaf, self._shared)
        return leaf

    def all_reduce(self, op: ReduceOp, value: Any, options: Any) -> Any:
        """One collective for the small leaves of each type, one for each large leaf."""
        leaves, structure = nest.flatten(value)
        reduction = self._reduction.with_bytes_per_pack(bytes_per_pack_of(options))
        arrays = [jnp.asarray(plain(leaf)) for leaf in leaves]
        results = collectives.all_reduce(op, arrays, self._mesh.num_replicas, reduction)
        results = [self._remember(result, self._mirrored) for result in results]
        return nest.unflatten(structure, results)

    def all_gather(self, value: Any, axis: int) -> Any:
        """One collective for each leaf; uneven components travel padded."""
        return nest.map_leaves(lambda leaf: self._gather_whole(leaf, axis), value)

    def _gather_whole(self, leaf: Any, axis: int) -> jax.Array:
        array = jnp.asarray(plain(leaf))
        shapes = self._variant.exchange(array.shape)
        check_gather(axis, shapes)
        if len(set(shapes)) == 1:
            whole = collectives.gathered(array, axis % array.ndim, tiled=True)
        else:
            whole = jnp.concatenate(self._gather_uneven(array, shapes), axis=axis)
        return self._remember(whole, self._mirrored)

    def _gather(self, local: jax.Array) -> tuple[jax.Array, ...]:
        shapes = self._variant.exchange(local.shape)
        if len(set(shapes)) == 1:
            return gather_equal_components(local, self._mesh.num_replicas)
        return self._gather_uneven(local, shapes)

    def _gather_uneven(self, local: jax.Array, shapes: list[Any]) -> tuple[jax.Array, ...]:
        return gather_components(
            local,
            kind_shapes=shapes,
            kind_of_replica=self._variant.kind_of_replica,
            axis=REPLICA_AXIS,
        )

    @staticmethod
    def _remember(leaf: Any, registry: dict[int, Any]) -> Any:
        registry[id(leaf)] = leaf
        return leaf
