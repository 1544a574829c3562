"""How a strategy combines values of different devices; accepted by ``MirroredStrategy``."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

from replicax.backend import devices
from replicax.backend.collectives import Reduction
from replicax.backend.mesh import ReplicaMesh
from replicax.core import notices
from replicax.core.enums import ReduceOp, ReduceOpLike
from replicax.core.errors import (
    ContextError,
    DistributedValueError,
    ReductionError,
    UnknownDeviceError,
)
from replicax.core.options import CommunicationOptions
from replicax.values.distributed import DistributedValues, Mirrored, PerReplica
from replicax.values.reduce import as_array
from replicax.values.traced import TracedPerReplica, gather_equal_components


class _Places(Protocol):
    """What is used of a strategy's ``extended``."""

    @property
    def mesh(self) -> ReplicaMesh:
        """The devices of the replicas."""
        ...

    def _hinted(self, options: Any, experimental_hints: Any) -> Reduction: ...

    def _reduced_whole(self, op: ReduceOp, pairs: list[Any], reduction: Reduction) -> list[Any]: ...

    def _placed(self, value: Any, destinations: Any) -> Any: ...


class CrossDeviceOps:
    """How values of different replicas are combined: one all-reduce of XLA, unless you override it.

    The default packs small values together. A subclass that overrides `reduce_implementation`,
    or `batch_reduce_implementation` as well, is asked wherever its strategy combines values:
    in ``reduce``, ``all_reduce``, ``extended.reduce_to`` and ``batch_reduce_to``, the gradients of
    an optimizer, assignments with an aggregation, and reads of sync-on-read variables. In a
    compiled step it is asked while the step is traced, so it uses JAX functions. With one
    replica there is nothing to combine, and nobody is asked.

    An object belongs to the strategies that it was given to.

    Example:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> class Largest(rx.CrossDeviceOps):
        ...     def reduce_implementation(self, reduce_op, value, destinations, options):
        ...         largest = jnp.stack(value.values).max(axis=0)
        ...         return self.broadcast(largest, destinations)
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=Largest())
        >>> value = strategy.experimental_distribute_values_from_function(
        ...     lambda ctx: 3.0 * ctx.replica_id_in_sync_group)
        >>> strategy.reduce("SUM", value, axis=None)
        Array(3., dtype=float32)
    """

    _users: weakref.WeakSet[Any] | None = None

    # -- for users -----------------------------------------------------------------------------

    def reduce(
        self,
        reduce_op: ReduceOpLike,
        per_replica_value: Any,
        destinations: Any,
        options: CommunicationOptions | None = None,
    ) -> Any:
        """Combines a value of all replicas, and puts the result where `destinations` is.

        Args:
            reduce_op: How to combine.
            per_replica_value: A per-replica value, or one that is the same everywhere.
            destinations: As for ``StrategyExtended.reduce_to``.
            options: Hints for the collective.

        Returns:
            The combined value: mirrored on several devices, bare on one.

        Raises:
            ReductionError: If `reduce_op` is neither SUM nor MEAN, or components cannot be
                combined.
        """
        op = ReduceOp.parse(reduce_op)
        options = CommunicationOptions() if options is None else options
        return self.reduce_implementation(op, per_replica_value, destinations, options)

    def batch_reduce(
        self,
        reduce_op: ReduceOpLike,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None = None,
    ) -> list[Any]:
        """`reduce` for many pairs at once, in their order.

        Args:
            reduce_op: How to combine.
            value_destination_pairs: Pairs of a value and a destination.
            options: Hints for the collective.

        Returns:
            What `reduce` returns, for each pair.

        Raises:
            ReductionError: As for `reduce`, and if these are no pairs.
        """
        op, pairs = ReduceOp.parse(reduce_op), list(value_destination_pairs)
        wrong = [pair for pair in pairs if not isinstance(pair, (tuple, list)) or len(pair) != 2]
        if wrong:
            raise ReductionError(
                f"batch_reduce got {wrong[0]!r}; expected pairs of a value and a destination."
            )
        options = CommunicationOptions() if options is None else options
        results = self.batch_reduce_implementation(op, pairs, options)
        if not isinstance(results, (tuple, list)) or len(results) != len(pairs):
            raise ReductionError(
                f"{type(self).__name__}.batch_reduce_implementation returned {results!r} for "
                f"{len(pairs)} pairs. Return a list with one result for each, in their order."
            )
        return list(results)

    def broadcast(self, tensor: Any, destinations: Any) -> Any:
        """`tensor` on all devices of `destinations`: mirrored on several, bare on one.

        Args:
            tensor: An array or a number.
            destinations: As for ``StrategyExtended.reduce_to``.

        Returns:
            The copied value.
        """
        return self.broadcast_implementation(tensor, destinations)

    # -- to override ---------------------------------------------------------------------------

    def reduce_implementation(
        self,
        reduce_op: ReduceOp,
        per_replica_value: Any,
        destinations: Any,
        options: CommunicationOptions,
    ) -> Any:
        """What `reduce` does; to be overridden.

        Args:
            reduce_op: How to combine.
            per_replica_value: The value; ``.values`` has the component of each replica.
            destinations: Where the result goes; hand it on to `broadcast`.
            options: Hints for the collective.

        Returns:
            A value of the shape of one component: an array, or what `broadcast` gives.
        """
        return self._by_default(reduce_op, [(per_replica_value, destinations)], options)[0]

    def batch_reduce_implementation(
        self,
        reduce_op: ReduceOp,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions,
    ) -> list[Any]:
        """What `batch_reduce` does; to be overridden by what sends many values together.

        Unless `reduce_implementation` alone is overridden, which is then called for each pair.

        Args:
            reduce_op: How to combine.
            value_destination_pairs: Pairs of a value and a destination.
            options: Hints for the collective.

        Returns:
            A list with a result for each pair, in their order.
        """
        if type(self).reduce_implementation is CrossDeviceOps.reduce_implementation:
            return self._by_default(reduce_op, list(value_destination_pairs), options)
        return [
            self.reduce_implementation(reduce_op, value, destinations, options)
            for value, destinations in value_destination_pairs
        ]

    def broadcast_implementation(self, tensor: Any, destinations: Any) -> Any:
        """What `broadcast` does; to be overridden.

        Args:
            tensor: An array or a number.
            destinations: Where it goes.

        Returns:
            The copied value.
        """
        value = as_array(tensor, "the tensor of a broadcast")
        return self._extended_of(tensor, destinations)._placed(value, destinations)

    # -- for the package -----------------------------------------------------------------------

    def _bound_to(self, extended: _Places) -> Reduction:
        """Takes note of a strategy that uses this object; gives how its programs reduce."""
        if self._users is None:
            self._users = weakref.WeakSet()
        self._users.add(extended)
        reduction = self._reduction(extended.mesh)
        if not self._is_overridden:
            return reduction
        return dataclasses.replace(reduction, custom=_Asked(self, extended.mesh))

    @property
    def _is_overridden(self) -> bool:
        kind = type(self)
        return (
            kind.reduce_implementation is not CrossDeviceOps.reduce_implementation
            or kind.batch_reduce_implementation is not CrossDeviceOps.batch_reduce_implementation
        )

    def _reduction(self, mesh: ReplicaMesh) -> Reduction:
        """What the programs of a strategy on `mesh` do by default."""
        del mesh
        return Reduction()

    def _by_default(self, op: ReduceOp, pairs: list[Any], options: Any) -> list[Any]:
        extended = self._extended_of(*pairs[0])
        reduction = dataclasses.replace(extended._hinted(options, None), custom=None)
        return extended._reduced_whole(op, pairs, reduction)

    def _extended_of(self, value: Any, destinations: Any) -> _Places:
        """The strategy, of those that use this object, that two values belong to."""
        users = list(self._users or ())
        meshes = [
            mesh
            for each in (value, destinations)
            if isinstance(each, DistributedValues) and (mesh := _mesh_of(each)) is not None
        ]
        for user in users:
            if user.mesh in meshes:
                return user
        if users and not meshes:
            return users[0]
        name = type(self).__name__
        raise ContextError(
            f"this {name} was given to no strategy that the values are of. Pass it to "
            f"MirroredStrategy(cross_device_ops={name}()), and values of that strategy to it."
        )


def _mesh_of(value: Any) -> ReplicaMesh | None:
    mesh = getattr(value, "mesh", None)
    return value._storage.mesh if mesh is None and hasattr(value, "_storage") else mesh


@dataclasses.dataclass(frozen=True, eq=False)
class _Asked:
    """Asks an object of the user's in the place of a collective.

    Attributes:
        ops: The object.
        mesh: Whose replicas.
    """

    ops: CrossDeviceOps
    mesh: ReplicaMesh

    def __call__(self, op: ReduceOp, values: Sequence[Any]) -> list[jax.Array]:
        """The combined values; see ``Reduction.custom``."""
        wrapped = [
            value if isinstance(value, PerReplica) else self._wrapped(value) for value in values
        ]
        if len(wrapped) == 1:
            results = [self.ops.reduce(op, wrapped[0], wrapped[0])]
        else:
            results = self.ops.batch_reduce(op, [(value, value) for value in wrapped])
        return [self._array(*pair) for pair in zip(results, wrapped, strict=True)]

    def _wrapped(self, local: jax.Array) -> TracedPerReplica:
        num_replicas = self.mesh.num_replicas
        return TracedPerReplica(
            self.mesh, local, lambda value: gather_equal_components(value, num_replicas)
        )

    def _array(self, result: Any, value: PerReplica) -> jax.Array:
        name = type(self.ops).__name__
        if isinstance(result, PerReplica):
            raise DistributedValueError(
                f"{name} returned a PerReplica value where one value for all replicas is asked "
                "for. Combine its components."
            )
        if isinstance(result, Mirrored):
            result = result._replicated() if value._is_traced else result.read_value()
        array = as_array(result, f"the result of {name}")
        if array.shape != value.shapes[0]:
            raise ReductionError(
                f"{name} returned shape {array.shape} for components of shape {value.shapes[0]}. "
                "Return one value of the shape of a component."
            )
        return array


class ReductionToOneDevice(CrossDeviceOps):
    """Brings all values to one device, adds them there, and sends the sum back.

    Args:
        reduce_to_device: The device that adds; the first replica's if None.
        accumulation_fn: Adds a list of arrays; a plain sum if None.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(
        ...     ["CPU:0", "CPU:1"], cross_device_ops=rx.ReductionToOneDevice("CPU:1"))
        >>> value = strategy.experimental_distribute_values_from_function(lambda ctx: 2.0)
        >>> strategy.reduce("SUM", value, axis=None)
        Array(4., dtype=float32)
    """

    def __init__(
        self,
        reduce_to_device: Any = None,
        accumulation_fn: Callable[[list[jax.Array]], jax.Array] | None = None,
    ) -> None:
        """Chooses the device and the addition."""
        self._device = reduce_to_device
        self._accumulate = accumulation_fn

    def _reduction(self, mesh: ReplicaMesh) -> Reduction:
        """Gather, add on the replica of that device, send back."""
        if self._device is None:
            return Reduction(on_replica=0, accumulate=self._accumulate)
        device = devices.resolve_device(self._device)
        if device not in mesh.devices:
            names = [devices.device_name(d) for d in mesh.devices]
            raise UnknownDeviceError(
                f"ReductionToOneDevice({self._device!r}) names a device that is not one of the "
                f"strategy's: {names}. Choose one of them."
            )
        return Reduction(on_replica=mesh.devices.index(device), accumulate=self._accumulate)


class _PackedAllReduce(CrossDeviceOps):
    """An all-reduce with a chosen number of packs."""

    def __init__(self, num_packs: int = 1) -> None:
        """Packs small values into `num_packs` operands; 0 packs nothing.

        Raises:
            ValueError: If `num_packs` is negative.
        """
        if num_packs < 0:
            raise ValueError(f"num_packs is {num_packs}; expected 0 or more.")
        self._num_packs = num_packs

    def _reduction(self, mesh: ReplicaMesh) -> Reduction:
        """The default all-reduce, with this number of packs."""
        name = type(self).__name__
        notices.notify_once(
            ("cross device ops", name),
            f"{name} is the default all-reduce here: XLA chooses the algorithm for the platform. "
            "Its num_packs takes effect.",
        )
        return Reduction(num_packs=self._num_packs)


class NcclAllReduce(_PackedAllReduce):
    """The default all-reduce; `num_packs` sets the packing.

    Args:
        num_packs: Into how many operands small values are packed; 0 packs nothing.

    Example:
        >>> import replicax as rx
        >>> isinstance(rx.NcclAllReduce(num_packs=2), rx.CrossDeviceOps)
        True
    """


class HierarchicalCopyAllReduce(_PackedAllReduce):
    """The default all-reduce; `num_packs` sets the packing.

    Args:
        num_packs: Into how many operands small values are packed; 0 packs nothing.

    Example:
        >>> import replicax as rx
        >>> isinstance(rx.HierarchicalCopyAllReduce(), rx.CrossDeviceOps)
        True
    """
