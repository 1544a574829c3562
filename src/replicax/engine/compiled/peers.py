"""How the replicas of a compiled run reach each other: collectives of the one program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from replicax.backend import collectives, placement
from replicax.backend.collectives import Reduction
from replicax.backend.mesh import ReplicaMesh
from replicax.core import nest
from replicax.core.enums import ReduceOp
from replicax.core.errors import DistributedValueError
from replicax.core.names import REPLICA_AXIS
from replicax.core.options import bytes_per_pack_of
from replicax.engine.contexts import stack
from replicax.engine.protocols import StrategyLike
from replicax.engine.trace.gather import gather_components
from replicax.engine.trace.spmd import Variant
from replicax.values.distributed import PerReplica
from replicax.values.leaves import Leaf, leaf_kind
from replicax.values.operators import plain
from replicax.values.reduce import check_gather
from replicax.values.regroup import same_python_value
from replicax.values.traced import TracedMirrored, TracedPerReplica, gather_equal_components


class TracedPeers:
    """Implements `engine.contexts.replica.Peers` for a replica function that is being traced.

    Remembers which tracers are equal on all replicas by construction, so that
    the run can return them as what they are. They are numbered: where the replicas
    have traces of their own, those give the same number to the same value.
    """

    def __init__(
        self, strategy: StrategyLike, mesh: ReplicaMesh, variant: Variant, reduction: Reduction
    ) -> None:
        """Peers of the replicas of `strategy` in the trace of `variant`."""
        self._strategy = strategy
        self._mesh = mesh
        self._variant = variant
        self._reduction = reduction
        self._mirrored = _Registry()
        self._shared = _Registry()

    @property
    def replica_id(self) -> Any:
        """A traced int32, or an int where it is known while tracing."""
        if self._mesh.num_replicas == 1:
            return 0
        if self._variant.replica_id is not None:
            return self._variant.replica_id
        self._variant.asked_replica_id = True
        return lax.axis_index(REPLICA_AXIS)

    def number_of_mirrored(self, leaf: Any) -> int | None:
        """The number of `leaf` if it is the untouched result of a reduction."""
        return self._mirrored.number_of(leaf)

    def number_of_shared(self, leaf: Any) -> int | None:
        """The number of `leaf` if it is one object that a merge_fn gave to all replicas."""
        return self._shared.number_of(leaf)

    def merge(
        self, merge_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs `merge_fn` in cross-replica context, in the same trace."""
        if self._mesh.num_replicas > 1:
            args, kwargs = self._wrap((args, kwargs))
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

    def _wrap(self, values: Any) -> Any:
        """What the replicas pass to a merge, as distributed values."""
        leaves, structure = nest.flatten(values)
        # At once and for all leaves: every trace must exchange as often as the others.
        everywhere = self._variant.exchange((structure, [self._describe(leaf) for leaf in leaves]))
        nest.require_same_structure([structure for structure, _ in everywhere])
        rows = zip(*(described for _, described in everywhere), strict=True)
        wrapped = [self._wrap_leaf(leaf, row) for leaf, row in zip(leaves, rows, strict=True)]
        return nest.unflatten(structure, wrapped)

    def _describe(self, leaf: Any) -> _Passed:
        if isinstance(leaf, nest.NestLeaf):
            return _Passed("object", leaf)
        if (number := self._shared.number_of(leaf)) is not None:
            return _Passed("shared", number, leaf.shape)
        if (number := self._mirrored.number_of(leaf)) is not None:
            return _Passed("mirrored", number, leaf.shape)
        if leaf_kind(leaf) in (Leaf.TRACER, Leaf.HOST_ARRAY):
            return _Passed("own", None, leaf.shape)
        return _Passed("object", leaf, np.shape(leaf) if placement.is_array_like(leaf) else None)

    def _wrap_leaf(self, leaf: Any, everywhere: Sequence[_Passed]) -> Any:
        """One argument of a merge, by what each kind of replica passes."""
        first = everywhere[0]
        if first.kind != "own" and all(map(first.is_same, everywhere)):
            return TracedMirrored(self._mesh, leaf) if first.kind == "mirrored" else leaf
        by_replica = [everywhere[kind] for kind in self._variant.kind_of_replica]
        shapes = [passed.shape for passed in by_replica if passed.shape is not None]
        if len(shapes) == len(by_replica):
            return TracedPerReplica(self._mesh, leaf, self._gather, shapes)
        if any(passed.kind != "object" for passed in everywhere):
            raise DistributedValueError(
                "the replicas pass an array and something else to one call: "
                f"{' and '.join(map(str, everywhere))}. Pass arrays on every replica."
            )
        if self._mesh.spans_workers:  # whose objects cannot be brought together
            return leaf
        return PerReplica(self._mesh, components=[passed.value for passed in by_replica])

    def _unwrap(self, leaf: Any) -> Any:
        if isinstance(leaf, PerReplica):
            return leaf._select(self._variant.example_id)
        if isinstance(leaf, TracedMirrored):
            return self._mirrored.remember(leaf._replicated())
        if isinstance(leaf, Tracer):
            return self._shared.remember(leaf)
        return leaf

    def all_reduce(self, op: ReduceOp, value: Any, options: Any) -> Any:
        """One collective for the small leaves of each type, one for each large leaf."""
        leaves, structure = nest.flatten(value)
        reduction = self._reduction.with_bytes_per_pack(bytes_per_pack_of(options))
        arrays = [jnp.asarray(plain(leaf)) for leaf in leaves]
        results = collectives.all_reduce(op, arrays, self._mesh.num_replicas, reduction)
        results = [self._mirrored.remember(result) for result in results]
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
        return self._mirrored.remember(whole)

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


class _Registry:
    """Tracers, numbered in the order in which they were remembered."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[int, Any]] = {}  # by id, with the tracer, which keeps it

    def remember(self, leaf: Any) -> Any:
        self._found.setdefault(id(leaf), (len(self._found), leaf))
        return leaf

    def number_of(self, leaf: Any) -> int | None:
        found = self._found.get(id(leaf))
        return None if found is None else found[0]


@dataclasses.dataclass(frozen=True, slots=True)
class _Passed:
    """What one kind of replica passes to a merge, as all traces may know it.

    Attributes:
        kind: "mirrored", "shared", "own" for an array of the replica's own, or "object".
        value: The number of what is mirrored or shared; the object.
        shape: Of an array or a number.
    """

    kind: str
    value: Any
    shape: tuple[int, ...] | None = None

    def is_same(self, other: _Passed) -> bool:
        """Whether all replicas have it alike."""
        if self.kind != other.kind:
            return False
        if self.kind == "object":
            return self.value is other.value or same_python_value((self.value, other.value))
        return self.value == other.value

    def __str__(self) -> str:
        return repr(self.value) if self.shape is None else f"an array of shape {self.shape}"
