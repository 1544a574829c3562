"""`StrategyExtended`: what optimizers, layers and metrics are written with.

The documented methods for code that must know about distribution, and what strategies do
differently: their devices, how variables are created and how values are added. To write a strategy
of your own, subclass this; the table in ``docs/your_own_strategy.md``
lists what to override.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax.backend import devices, placement, workers
from replicax.backend.collectives import Reduction
from replicax.backend.mesh import ReplicaMesh, logical_mesh
from replicax.backend.shards import ShardLayout
from replicax.core import nest, notices
from replicax.core.enums import AutoShardPolicy, InputReplicationMode, ReduceOp, ReduceOpLike
from replicax.core.errors import (
    ContextError,
    DistributedValueError,
    ReplicationModeError,
    VariableError,
)
from replicax.core.options import InputOptions, RunOptions, bytes_per_pack_of
from replicax.core.sharding import Sharding
from replicax.core.typing import Device
from replicax.core.value_context import ValueContext
from replicax.engine.contexts import stack
from replicax.engine.eager.run import without_views
from replicax.engine.protocols import StrategyLike
from replicax.engine.run import run
from replicax.engine.storage import exclusively
from replicax.engine.threads import ReplicaThreads
from replicax.engine.trace.frame import current_frame, frame_of
from replicax.input import from_function, placing
from replicax.input.adapters.table import dataset_of_slices, source_of
from replicax.input.context import InputContext
from replicax.input.dataset import DistributedDataset
from replicax.input.from_function import PerReplicaBatches
from replicax.input.global_batches import GlobalBatches
from replicax.input.iterator import DistributedIterator
from replicax.input.sharding import plan_shards
from replicax.input.source import Source
from replicax.input.topology import InputTopology
from replicax.jax_internals.arrays import uncommitted
from replicax.jax_internals.traces import concretely, outside_traces
from replicax.strategies.cross_device_ops import CrossDeviceOps
from replicax.strategies.multi_step import MultiStepContext, StepPrograms, run_steps
from replicax.strategies.parts import part_of_argument, reduced_to_parts, runs_on_parts
from replicax.values.distributed import ComponentView, DistributedValues, Mirrored, PerReplica
from replicax.values.reduce import as_array, gather_leaf, reduce_leaf, reduce_leaves
from replicax.values.regroup import same_python_value, select
from replicax.values.traced import TracedMirrored
from replicax.variables.colocation import asked_devices, asked_primary, colocated_on
from replicax.variables.creation import build_variable
from replicax.variables.distributed import DistributedVariable
from replicax.variables.partitioning import NO_RULES, PartitionRules, Rules
from replicax.variables.sharded import ShardedVariable, VariablePart
from replicax.variables.update import UpdateSession
from replicax.variables.variable import Variable, is_partitioned

_PER_REPLICA = InputReplicationMode.PER_REPLICA
DatasetFn = Callable[[InputContext], Any]
_serials = itertools.count(1)


class StrategyExtended:
    """Additional methods for algorithms that must know about distribution.

    Args:
        container_strategy: The strategy this belongs to.

    Attributes:
        cluster_resolver: What knows the cluster; None for a single worker.
        sharding: What of the training state is split over the replicas; None for nothing.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     v = rx.Variable(1.0)
        >>> def merge_fn(strategy, gradient):
        ...     total = strategy.extended.reduce_to("SUM", gradient, destinations=v)
        ...     strategy.extended.update(v, lambda v, g: v.assign_sub(g), args=(total,))
        >>> def replica_fn():
        ...     rx.get_replica_context().merge_call(merge_fn, args=(rx.grad(lambda: 0.1 * v, v),))
        >>> strategy.run(replica_fn)
        >>> v.numpy()
        array(0.8, dtype=float32)
    """

    _is_default = False
    cluster_resolver: Any = None
    sharding: Sharding | None = None

    def __init__(self, container_strategy: StrategyLike) -> None:
        """Prepares for `container_strategy`; subclasses then call `set_replica_devices`."""
        self._container_strategy = container_strategy
        self._serial = next(_serials)  # no other strategy of this process has it, or will
        self._threads: ReplicaThreads | None = None  # of the eager executor
        self._mesh: ReplicaMesh | None = None
        self._reduction = Reduction()
        self._cross_device_ops: CrossDeviceOps | None = None
        self._partition_rules = NO_RULES
        self._step_programs = StepPrograms()

    # -- what a strategy is ------------------------------------------------------------------

    def set_replica_devices(
        self,
        worker_devices: Sequence[Any] | None,
        cross_device_ops: CrossDeviceOps | None = None,
        logical_devices: int = 1,
        partition_rules: Rules | None = None,
    ) -> None:
        """Says where the replicas run; the ``__init__`` of every strategy calls it once.

        Args:
            worker_devices: One device per replica: JAX devices, or names such as
                ``"GPU:0"``; all local devices of JAX's default platform if None.
            cross_device_ops: How values of different replicas are added; by one
                all-reduce if None.
            logical_devices: How many of the devices, one after the other, a replica spans.
            partition_rules: How variables are cut over these, by their names.

        Raises:
            ValueError: If the devices cannot be divided into groups of `logical_devices`.
            TypeError: If `cross_device_ops` is not a `CrossDeviceOps`.
        """
        if worker_devices is None:
            found = devices.local_devices()
        else:
            found = devices.resolve_devices(worker_devices)
        self._set_logical_mesh(logical_mesh(_rows_of(found, logical_devices)), partition_rules)
        if cross_device_ops is None:
            return
        if not isinstance(cross_device_ops, CrossDeviceOps):
            raise TypeError(
                f"cross_device_ops is {cross_device_ops!r}; expected an instance of "
                "CrossDeviceOps, such as ReductionToOneDevice() or NcclAllReduce()."
            )
        self._cross_device_ops = cross_device_ops
        self._reduction = cross_device_ops._bound_to(self)

    def _set_logical_mesh(self, mesh: ReplicaMesh, partition_rules: Rules | None) -> None:
        self._mesh = mesh
        self._partition_rules = PartitionRules.of(partition_rules, mesh)

    @property
    def mesh(self) -> ReplicaMesh:
        """The devices of the replicas."""
        if self._mesh is None:
            raise ContextError(
                f"{type(self).__name__} has no devices. Call self.set_replica_devices(devices) in "
                "its __init__."
            )
        return self._mesh

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas run in step."""
        return self.mesh.num_replicas

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The device of each replica of this worker."""
        return tuple(devices.device_name(device) for device in self.mesh.local_devices)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The devices that hold variables."""
        return self.worker_devices

    def _worker_name(self, device: Device) -> str:
        """What to call the worker that has `device`: its task and where it is."""
        joined = workers.current()
        rank = device.process_index
        return f"worker {rank}" if joined is None else joined.names[rank]

    def create_variable(self, **options: Any) -> Variable:
        """Creates a variable for code in this strategy's scope, on the devices asked for.

        Args:
            **options: The arguments of ``Variable``, by name.

        Returns:
            The variable.

        Raises:
            VariableError: If ``colocate_vars_with`` asks for several of the devices, but not
                all of them.
        """
        asked = asked_devices()
        strategy = self._container_strategy
        if asked is None or asked == self.mesh.local_devices:
            options["partition_rules"] = self._partition_rules
            layout_for = None if self.sharding is None else self._layout_for
            return build_variable(
                mesh=self.mesh, strategy=strategy, layout_for=layout_for, **options
            )
        if len(asked) == 1:
            return build_variable(home=asked[0], strategy=strategy, **options)
        raise VariableError(
            f"a variable can be on one device or on all of {list(self.worker_devices)}; asked for "
            f"{[devices.device_name(device) for device in asked]}."
        )

    @property
    def experimental_between_graph(self) -> bool:
        """Whether every worker builds the program for itself."""
        return False

    @property
    def experimental_require_static_shapes(self) -> bool:
        """Whether shapes must be known and equal: no."""
        return False

    @property
    def experimental_should_init(self) -> bool:
        """Whether this worker initialises variables."""
        return True

    @property
    def should_checkpoint(self) -> bool:
        """Whether this worker saves checkpoints."""
        return True

    @property
    def should_save_summary(self) -> bool:
        """Whether this worker writes summaries."""
        return True

    # -- sharding ----------------------------------------------------------------------------

    def set_sharding(self, sharding: Sharding | None) -> None:
        """Says what is split over the replicas; the ``__init__`` of a strategy may call it.

        Args:
            sharding: What to split; None for nothing.

        Raises:
            TypeError: If it is no `Sharding`.
        """
        if sharding is None:
            return
        if not isinstance(sharding, Sharding):
            raise TypeError(
                f"sharding is {sharding!r}; expected an experimental.Sharding, such as "
                "Sharding(stage=3), or None."
            )
        if self._reduction.custom is not None:
            raise ValueError(
                f"sharding={sharding!r} sends each replica its part of a sum, and "
                f"{type(self._cross_device_ops).__name__} combines whole values. Leave out one of "
                "the two."
            )
        self.sharding = sharding

    def _split_layout(self, variable: Variable) -> ShardLayout | None:
        """How the slots and gradients of a parameter are split; None if they are whole."""
        if self.sharding is None or variable.strategy is not self._container_strategy:
            return None
        layout = variable._storage.layout
        is_cut = variable._storage.spec is not None  # over logical devices, and its slots with it
        if layout is not None or is_cut or self.sharding.stage == 3 or not variable.trainable:
            return layout
        return self._layout(variable.shape, variable.dtype)

    def _layout_for(self, shape: tuple[int, ...], dtype: Any, trainable: bool) -> Any:
        """How a new variable is split: a slot as its parameter, a parameter in stage 3."""
        assert self.sharding is not None
        primary = asked_primary()
        if primary is not None:
            return self._split_layout(primary) if shape == primary.shape else None
        return self._layout(shape, dtype) if trainable and self.sharding.stage == 3 else None

    def _layout(self, shape: tuple[int, ...], dtype: Any) -> ShardLayout | None:
        assert self.sharding is not None
        count = self.num_replicas_in_sync
        return ShardLayout(shape, count) if self.sharding._splits(shape, dtype, count) else None

    # -- run ---------------------------------------------------------------------------------

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: RunOptions | None,
    ) -> Any:
        """Runs `fn` on every replica: compiled where that was asked for, else eagerly.

        Args:
            fn: The function.
            args: Its arguments.
            kwargs: The same by keyword.
            options: How to run it; None for the defaults.

        Returns:
            The merged results, as ``Strategy.run`` gives them.

        Raises:
            ContextError: Inside ``merge_call`` and ``extended.update``, while the replicas wait.
            TypeError: If `fn` is not callable, or `options` are not a `RunOptions`.
            DistributedValueError: If an argument has components for the replicas of another
                strategy.
        """
        return run(self._container_strategy, fn, args, kwargs, options)

    def call_for_each_replica(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs `fn` once per replica, in replica context.

        Args:
            fn: The function.
            args: Its arguments, nests of values and distributed values.
            kwargs: The same by keyword.

        Returns:
            The merged results, as ``Strategy.run`` gives them.

        Raises:
            ContextError: If called inside ``run`` of this strategy, or inside another scope.
        """
        stack.require_outside_run(self._container_strategy, "extended.call_for_each_replica")
        return self.run(fn, tuple(args), dict(kwargs or {}), None)

    # -- values ------------------------------------------------------------------------------

    def reduce(self, op: ReduceOp, value: Any, axis: Any) -> Any:
        """Combines a nest across replicas and, with `axis`, over that dim.

        Args:
            op: How to combine.
            value: A nest of values.
            axis: The dim, a tuple of dims, or None for replicas only.

        Returns:
            An array for each leaf of `value`, on one device.

        Raises:
            ReductionError: If components cannot be combined.
        """
        axis = tuple(axis) if isinstance(axis, list) else axis
        if isinstance(value, DistributedValues):  # as most are: a loss
            return reduce_leaf(op, value, axis, self.mesh, self._reduction)
        return nest.map_leaves(
            lambda leaf: reduce_leaf(op, leaf, axis, self.mesh, self._reduction), value
        )

    def gather(self, value: Any, axis: int) -> Any:
        """Concatenates a nest over all replicas.

        Args:
            value: A nest of values.
            axis: The dim to concatenate.

        Returns:
            An array for each leaf of `value`, on one device.

        Raises:
            ReductionError: If components differ in another dim, or have no dims.
        """
        return nest.map_leaves(lambda leaf: gather_leaf(leaf, axis, self.mesh), value)

    def local_results(self, value: Any) -> tuple[Any, ...]:
        """The components of `value` on this worker.

        Args:
            value: A nest of values.

        Returns:
            One value for each replica of this worker.
        """
        if isinstance(value, DistributedValues):
            return tuple(value.values)  # pyright: ignore[reportAttributeAccessIssue]
        leaves = nest.flatten(value)[0]
        if not any(isinstance(leaf, DistributedValues) for leaf in leaves):
            return (value,)
        return tuple(
            nest.map_leaves(lambda leaf, i=i: component_of(leaf, i), value)
            for i in range(len(self.mesh.local_replicas))
        )

    def values_from_function(self, value_fn: Callable[[ValueContext], Any]) -> Any:
        """One value per replica.

        Args:
            value_fn: Called once for each replica of this worker, with a `ValueContext`.

        Returns:
            A `PerReplica` for each leaf of what `value_fn` returns.
        """
        count = self.num_replicas_in_sync
        values = [value_fn(ValueContext(i, count)) for i in self.mesh.local_replicas]
        return nest.transpose(
            values, lambda leaves: PerReplica(self.mesh, components=[*map(_own_array, leaves)])
        )

    def distribute_batch(self, batch: Any) -> Any:
        """Divides one global batch among the replicas.

        Args:
            batch: A nest of arrays, all with the same number of rows.

        Returns:
            A `PerReplica` for each leaf.

        Raises:
            BatchError: If the leaves cannot be divided on dim 0, or differ in it.
        """
        return placing.distribute_batch(batch, self.mesh)

    # -- combining values --------------------------------------------------------------------

    def reduce_to(
        self,
        reduce_op: ReduceOpLike,
        value: Any,
        destinations: Any,
        options: Any = None,
        experimental_hints: Any = None,
    ) -> Any:
        """Combines `value` across replicas and puts the result where `destinations` is.

        Args:
            reduce_op: How to combine.
            value: A per-replica value, or one that is the same everywhere.
            destinations: A variable or a value on several devices (the result is
                then mirrored there), or one device (the result is then bare). To a
                variable that is split over the replicas, a compiled run sends every
                replica its part only; used as an array, the result is whole.
            options: Hints for the collective.
            experimental_hints: The same, by its older name.

        Returns:
            The combined value: mirrored on several devices, bare on one.

        Raises:
            ReductionError: If `reduce_op` is neither SUM nor MEAN, or components cannot be
                combined.
        """
        pairs = [(value, destinations)]
        return self.batch_reduce_to(reduce_op, pairs, options, experimental_hints)[0]

    def batch_reduce_to(
        self,
        reduce_op: ReduceOpLike,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: Any = None,
        experimental_hints: Any = None,
    ) -> list[Any]:
        """`reduce_to` for many pairs at once, in their order; small values travel together.

        Args:
            reduce_op: How to combine.
            value_destination_pairs: Pairs of a value and a destination, as `reduce_to` takes them.
            options: Hints for the collective.
            experimental_hints: The same, by its older name.

        Returns:
            What `reduce_to` returns, for each pair.

        Raises:
            ReductionError: If `reduce_op` is neither SUM nor MEAN, or components cannot be
                combined.
        """
        stack.require_outside_run(self._container_strategy, "extended.batch_reduce_to")
        op = ReduceOp.parse(reduce_op)
        pairs = list(value_destination_pairs)
        ops = self._cross_device_ops
        if ops is not None and self._reduction.custom is not None:
            hints = experimental_hints if options is None else options
            if len(pairs) == 1:
                return [ops.reduce(op, *pairs[0], hints)]
            return ops.batch_reduce(op, pairs, hints)
        reduction = self._hinted(options, experimental_hints)
        if self.sharding is None:
            return self._reduced_whole(op, pairs, reduction)
        layouts = [self._layout_at(destinations) for _, destinations in pairs]
        split = reduced_to_parts(op, [value for value, _ in pairs], layouts, self.mesh, reduction)
        rest = [pair for index, pair in enumerate(pairs) if index not in split]
        whole = iter(self._reduced_whole(op, rest, reduction))
        return [split[index] if index in split else next(whole) for index in range(len(pairs))]

    def _reduced_whole(self, op: ReduceOp, pairs: list[Any], reduction: Reduction) -> list[Any]:
        reduced: list[Any] = [None] * len(pairs)
        for chosen, how in self._travelling_together(pairs, reduction):
            values = reduce_leaves(op, [pairs[i][0] for i in chosen], self.mesh, how)
            for index, value in zip(chosen, values, strict=True):
                reduced[index] = value
        return [
            self._placed(value, destinations)
            for value, (_, destinations) in zip(reduced, pairs, strict=True)
        ]

    def _travelling_together(
        self, pairs: Sequence[tuple[Any, Any]], reduction: Reduction
    ) -> list[tuple[list[int], Reduction]]:
        """Which of the pairs are reduced at once, and how.

        What is for a variable in pieces is in pieces too, and to pack it would gather these.
        """
        if self.mesh.num_logical_devices == 1:
            return [(list(range(len(pairs))), reduction)]
        whole, cut = [], []
        for index, (_, destination) in enumerate(pairs):
            (cut if is_partitioned(destination) else whole).append(index)
        unpacked = dataclasses.replace(reduction, num_packs=0, bytes_per_pack=0)
        return [(chosen, how) for chosen, how in ((whole, reduction), (cut, unpacked)) if chosen]

    def _layout_at(self, destinations: Any) -> ShardLayout | None:
        """How a value is split that goes to `destinations`; None if it goes there whole."""
        if isinstance(destinations, ShardedVariable):
            self._require_own(destinations, "the destination of a reduction")
            return destinations._layout
        return destinations if isinstance(destinations, ShardLayout) else None

    def _gradient_destination(self, variable: Variable) -> Any:
        """Where to reduce the gradients of `variable` to, for an update in parts if there is one.

        The variable itself; with ``Sharding(stage=2)`` the way its gradients are split, although
        the variable is whole.
        """
        if self.sharding is None or self.sharding.stage == 1:
            return variable
        return self._split_layout(variable) or variable

    def _hinted(self, options: Any, experimental_hints: Any) -> Reduction:
        hints = experimental_hints if options is None else options
        return self._reduction.with_bytes_per_pack(bytes_per_pack_of(hints))

    def broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        """`tensor` on all devices of `destinations`: mirrored on several, bare on one.

        Args:
            tensor: An array or a number.
            destinations: As for `reduce_to`.

        Returns:
            The copied value.

        Raises:
            DistributedValueError: If `tensor` is different on every replica.
        """
        stack.require_outside_run(self._container_strategy, "extended.broadcast_to")
        if isinstance(tensor, PerReplica):
            raise DistributedValueError(
                "extended.broadcast_to got a PerReplica value, which is already different on every "
                "device. Combine it first with extended.reduce_to."
            )
        value = as_array(tensor, "the tensor of extended.broadcast_to")
        if self._cross_device_ops is not None:
            return self._cross_device_ops.broadcast(value, destinations)
        return self._placed(value, destinations)

    def _placed(self, value: Any, destinations: Any) -> Any:
        names = self._devices_of(destinations)
        if names is None:
            return value
        if len(names) == 1:
            if isinstance(value, Tracer):
                return value
            with concretely():
                return uncommitted(jax.device_put(value, devices.resolve_device(names[0])))
        if set(names) != set(self.worker_devices):
            raise DistributedValueError(
                f"a value can be put on one device or on all of {list(self.worker_devices)}; asked "
                f"for {list(names)}."
            )
        return self._mirrored(value)

    def _mirrored(self, value: Any) -> Mirrored:
        """One `value` on the devices of all replicas."""
        frame = current_frame()
        if frame is not None and frame.in_replica:
            return TracedMirrored(self.mesh, value)
        if frame is not None:
            frame.meshes.append(self.mesh)  # the program may use no other value on it
        if isinstance(value, Tracer):
            return Mirrored(self.mesh, array=value)
        with concretely():
            return Mirrored(self.mesh, array=placement.replicate(value, self.mesh))

    def _devices_of(self, destinations: Any) -> tuple[Any, ...] | None:
        """The devices that `destinations` names or lives on; None for an undistributed value."""
        if isinstance(destinations, DistributedVariable):
            self._require_own(destinations, "the destination of a reduction or broadcast")
            return tuple(map(devices.device_name, destinations._devices_in_order))
        if isinstance(destinations, (DistributedValues, ShardLayout)):
            return self.worker_devices
        if isinstance(destinations, (tuple, list)):
            return tuple(devices.device_name(d) for d in devices.resolve_devices(destinations))
        if isinstance(destinations, (str, jax.Device, devices.LogicalDevice)):
            return (devices.device_name(devices.resolve_device(destinations)),)
        return None

    # -- updating variables ------------------------------------------------------------------

    def update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Calls ``fn(v, *args, **kwargs)`` for every copy of `var`, in update context.

        A variable that is split over the replicas is seen whole, and so are the arguments,
        unless `fn` was declared with ``experimental.elementwise``: in a compiled run such a
        function gets the parts that the replica has.

        Args:
            var: The variable.
            fn: Assigns its first argument.
            args: Values for `fn`; mirrored ones are unwrapped for each copy.
            kwargs: The same by keyword.
            group: Whether results are merged; False gives a list per leaf.

        Returns:
            What `fn` returns: merged, or a list for each leaf.

        Raises:
            DistributedValueError: If an argument is different on every replica, or `var` belongs to
                another strategy.
        """
        args, kwargs = tuple(args), dict(kwargs or {})
        strategy, entry = self._container_strategy, stack.top()
        if entry is not None and entry.strategy is not strategy:
            stack.require_outside_run(strategy, "extended.update")
        elif entry is not None and entry.mode is stack.Mode.REPLICA and stack.has_strategy():
            call = lambda args, kwargs: self.update(var, fn, args, kwargs, group)  # noqa: E731
            return entry.replica_context._together("extended.update", call, (args, kwargs))
        if not isinstance(var, DistributedVariable):
            return fn(var, *args, **kwargs)
        self._require_own(var, "extended.update")
        _refuse_per_replica(f"extended.update of variable {var.name!r}", (args, kwargs))

        def update_copy(copy: Any, args: Any, kwargs: Any) -> Any:
            return fn(copy, *args, **kwargs)

        copies = (var, *var.values)
        if isinstance(var, ShardedVariable) and runs_on_parts(fn):
            copies = (VariablePart(var), *var.values)
            in_parts = lambda leaf: part_of_argument(leaf, var._layout)  # noqa: E731
            args = tuple(nest.map_leaves(in_parts, args))
            kwargs = dict(nest.map_leaves(in_parts, kwargs))
        return self._in_update_context(
            update_copy, copies, args, kwargs, var._devices_in_order, group
        )

    def update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Calls ``fn(*args, **kwargs)`` on every device of `colocate_with`, in update context.

        Args:
            colocate_with: What `non_slot_devices` returned.
            fn: Updates variables that are there.
            args: Values for `fn`; mirrored ones are unwrapped for each device.
            kwargs: The same by keyword.
            group: Whether results are merged; False gives a list per leaf.

        Returns:
            What `fn` returns: merged, or a list for each leaf.

        Raises:
            DistributedValueError: If an argument is different on every replica.
        """
        stack.require_outside_run(self._container_strategy, "extended.update_non_slot")
        args, kwargs = tuple(args), dict(kwargs or {})
        _refuse_per_replica("extended.update_non_slot", (args, kwargs))
        names = self._devices_of(colocate_with) or self.parameter_devices
        places = tuple(devices.resolve_device(name) for name in names)
        copies = (None,) * (len(places) + 1)
        call = lambda _, args, kwargs: fn(*args, **kwargs)  # noqa: E731
        return self._in_update_context(call, copies, args, kwargs, places, group)

    def assign_together(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        """Assigns to each variable what every replica computed alike, without communication.

        For libraries whose update is a function of values, called on every replica: each
        computes the new values from reduced gradients, so all have the same. A compiled run
        checks that when it is traced; an eager one compares the values.

        Args:
            variables: Variables of this strategy.
            values: An array for each.

        Raises:
            VariableError: If a value differs between replicas.

        Example:
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
            >>> with strategy.scope():
            ...     v = rx.Variable(1.0)
            >>> @rx.function
            ... def step(x):
            ...     total = rx.get_replica_context().all_reduce("SUM", x.sum())
            ...     strategy.extended.assign_together([v], [v + total])
            >>> strategy.run(step, args=(strategy.distribute_batch([2.0, 3.0]),))
            >>> v.numpy()
            array(6., dtype=float32)
        """
        variables, values = list(variables), list(values)
        for variable in variables:
            self._require_own(variable, "extended.assign_together")

        def assign(values: Sequence[Any]) -> None:
            single = []  # all are checked before the first is assigned
            for variable, value in zip(variables, values, strict=True):
                if isinstance(value, PerReplica):
                    if not placement.are_same(value.values):
                        raise VariableError(
                            f"assign_together got different values for variable {variable.name!r}: "
                            f"{value.values[0]} on one replica, {value.values[-1]} on another. "
                            "Reduce what they are computed from, with all_reduce."
                        )
                    value = value.values[0]
                single.append(value)
            for variable, value in zip(variables, single, strict=True):
                variable.assign(value)

        entry = stack.top()
        if entry is None or entry.mode is not stack.Mode.REPLICA:
            assign(values)
        elif current_frame() is not None:
            # Not as arguments: those would be one value per replica.
            entry.replica_context.merge_call(lambda _: assign(values))
        else:
            entry.replica_context.merge_call(lambda _, *values: assign(values), args=tuple(values))

    def apply_gradients(self, optimizer: Any, grads_and_vars: Any) -> bool:
        """Applies gradients in a way of the strategy's own; called by optimizers.

        For a strategy whose variables are elsewhere, and are updated there.

        Args:
            optimizer: The `Optimizer`.
            grads_and_vars: What its ``apply_gradients`` was given.

        Returns:
            True; False if the strategy has no way of its own, and the optimizer does it.
        """
        del optimizer, grads_and_vars
        return False

    def _in_update_context(
        self,
        call: Callable[[Any, Any, Any], Any],
        copies: Sequence[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        places: Sequence[Any],
        group: bool,
    ) -> Any:
        """Calls once per place; in a trace once, with the whole (the first of `copies`)."""
        strategy = self._container_strategy
        results = []
        if current_frame() is not None:
            own_args, own_kwargs = select((args, kwargs), self.mesh.local_replicas.start)
            with stack.entered(stack.Entry(strategy, stack.Mode.UPDATE)):
                result = call(copies[0], own_args, own_kwargs)
            for index in range(len(places)):
                results.append(nest.map_leaves(lambda leaf, i=index: component_of(leaf, i), result))
        else:
            session = UpdateSession(len(places))
            first = self.mesh.local_replicas.start
            with exclusively():
                for index, device in enumerate(places):
                    own_args, own_kwargs = select((args, kwargs), first + index)
                    entry = stack.Entry(strategy, stack.Mode.UPDATE, copy_id=index, update=session)
                    with stack.entered(entry), jax.default_device(device):
                        results.append(call(copies[index + 1], own_args, own_kwargs))
                session.commit()
        if not group:
            return nest.transpose(results, list)
        if len(places) == 1:
            return without_views(results[0])
        return nest.transpose(results, self._merge_update)

    def _merge_update(self, leaves: tuple[Any, ...]) -> Any:
        """One result of the updates of all copies: mirrored, if all of them are equal."""
        first = leaves[0]
        if not all(map(placement.is_array_like, leaves)):
            return without_views(first)
        if current_frame() is not None:
            return self._mirrored(jnp.asarray(first)) if _is_array(first) else first
        if not all(map(_is_array, leaves)):
            is_one = same_python_value(leaves)
            return first if is_one else PerReplica(self.mesh, components=leaves)
        arrays = [jnp.asarray(leaf) for leaf in leaves]
        kind = Mirrored if placement.are_same(arrays) else PerReplica
        return kind(self.mesh, components=arrays)

    # -- many steps --------------------------------------------------------------------------

    def experimental_run_steps_on_iterator(
        self,
        fn: Callable[[MultiStepContext, Any], Any],
        iterator: Iterator[Any],
        iterations: int = 1,
        initial_loop_values: Mapping[str, Any] | None = None,
    ) -> MultiStepContext:
        """Calls ``fn(context, next(iterator))`` `iterations` times. Deprecated: use ``run``.

        Steps over inputs of one structure and one shape are compiled into one
        program and launched once; others run one by one, as Python.

        Args:
            fn: One step, in cross-replica context; it usually calls
                `call_for_each_replica`, and sets outputs on its first argument.
            iterator: Gives the input of each step: per-replica values, or nests of them.
            iterations: How many steps.
            initial_loop_values: The outputs that the first step finds, by name.

        Returns:
            The context that the steps got, with the outputs of the last one.

        Raises:
            OutOfRangeError: If the iterator ends early; the steps before that have run.
        """
        call = "extended.experimental_run_steps_on_iterator"
        notices.deprecate(call, "Strategy.run in a loop")
        strategy = self._container_strategy
        stack.require_outside_run(strategy, call)
        return run_steps(
            strategy, fn, iterator, iterations, initial_loop_values, self._step_programs
        )

    # -- variables ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def creation_scope(self) -> Iterator[None]:
        """A scope of this strategy for creating variables in the middle of anything.

        Inside a replica, or a function that is being traced, code in here runs once and at once,
        as if it stood in ``strategy.scope()`` at the top of the program. So a layer that makes its
        variables when it is first called makes one set of them, with concrete values.

        Returns:
            A context manager.

        Example:
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
            >>> made = []
            >>> def replica_fn():
            ...     if not made:
            ...         with strategy.extended.creation_scope():
            ...             made.append(rx.Variable(2.0))
            ...     return made[0] * 1
            >>> strategy.run(replica_fn)
            PerReplica:{
              0: Array(2., dtype=float32),
              1: Array(2., dtype=float32)
            }
        """
        entry = stack.Entry(self._container_strategy, stack.Mode.SCOPE)
        with frame_of(None), outside_traces(), stack.replaced_by(entry):
            yield

    @contextlib.contextmanager
    def colocate_vars_with(self, colocate_with_variable: Any) -> Iterator[None]:
        """Variables created inside are on the devices of `colocate_with_variable`.

        Args:
            colocate_with_variable: A variable of this strategy, or what
                `non_slot_devices` returned.

        Returns:
            A context manager.

        Raises:
            ContextError: Outside this strategy's scope.
            DistributedValueError: If the variable was not created in this strategy's scope.
        """
        strategy = self._container_strategy
        stack.keep_place()
        entry = stack.top()
        if not (self._is_default if entry is None else entry.strategy is strategy):
            raise ContextError(
                f"extended.colocate_vars_with of {strategy!r} was called inside "
                f"{stack.describe()}. Call it inside `with strategy.scope():`."
            )
        if isinstance(colocate_with_variable, Variable):
            self._require_own(colocate_with_variable, "extended.colocate_vars_with")
            if stack.has_strategy() and colocate_with_variable.strategy is None:
                raise DistributedValueError(
                    f"extended.colocate_vars_with of {strategy!r} got variable "
                    f"{colocate_with_variable.name!r}, which was created outside every scope. "
                    "Create it inside `with strategy.scope():`, or pass the devices' names."
                )
        names = self._devices_of(colocate_with_variable)
        primary = colocate_with_variable if isinstance(colocate_with_variable, Variable) else None
        with colocated_on(None if names is None else devices.resolve_devices(names), primary):
            yield

    def non_slot_devices(self, var_list: Sequence[Any]) -> tuple[str, ...]:
        """The devices for state of an optimizer that belongs to no single variable.

        Args:
            var_list: The variables that the optimizer updates.

        Returns:
            The names of the devices.
        """
        del var_list
        return self.parameter_devices

    def read_var(self, v: Any) -> Any:
        """The value of `v`; of a sync-on-read variable the aggregate.

        Args:
            v: A variable of this strategy.

        Returns:
            An array.

        Raises:
            DistributedValueError: If it is not a variable, or one of another strategy.
        """
        self._require_own(v, "extended.read_var")
        return v.read_value()

    def value_container(self, value: Any) -> Any:
        """The variable that `value` is a copy of, or `value` itself.

        Args:
            value: Any value.

        Returns:
            The variable, or `value`.
        """
        if isinstance(value, ComponentView) and value._owner is not None:
            return value._owner
        return value

    def variable_created_in_scope(self, v: Any) -> bool:
        """Whether `v` was created in this strategy's scope.

        Args:
            v: Any value.

        Returns:
            True if it is a variable of this strategy.
        """
        return isinstance(v, Variable) and v.strategy is self._container_strategy

    def _require_own(self, v: Any, call: str) -> None:
        if not isinstance(v, Variable):
            raise DistributedValueError(f"{call} needs a variable; got {v!r}.")
        if v.strategy is not None and v.strategy is not self._container_strategy:
            raise DistributedValueError(
                f"{call} of {self._container_strategy!r} got variable {v.name!r}, which was "
                f"created under {v.strategy!r}."
            )

    # -- input ----------------------------------------------------------------------------

    @property
    def _input_topology(self) -> InputTopology:
        """The workers that read input, and the replicas each of them feeds."""
        return InputTopology(replicas_per_worker=self.mesh.num_replicas)

    def _distribute_dataset(
        self,
        dataset: Any,
        options: InputOptions,
        *,
        batch_size: int | None,
        auto_shard_policy: AutoShardPolicy | None,
    ) -> DistributedDataset:
        """A dataset of global batches, divided among the replicas."""
        if options.experimental_replication_mode is _PER_REPLICA:
            raise ReplicationModeError(
                "InputReplicationMode.PER_REPLICA needs a dataset for each replica; "
                "distribute_dataset has one for all. Use distribute_datasets_from_function."
            )
        topology = self._input_topology
        source = _source_of(dataset, batch_size=batch_size)
        plan = plan_shards(auto_shard_policy, source, topology)
        return DistributedDataset(GlobalBatches(plan, topology), self.mesh, topology, options)

    def _distribute_datasets_from_function(
        self, dataset_fn: DatasetFn, options: InputOptions
    ) -> DistributedDataset:
        """Datasets of per-replica batches, made by ``dataset_fn``."""
        topology = self._input_topology
        per_replica = options.experimental_replication_mode is _PER_REPLICA
        devices = None
        if options.experimental_place_dataset_on_device:
            devices = [self.mesh.devices[replica] for replica in topology.local_replicas]
        contexts = from_function.input_contexts(topology, per_replica=per_replica)
        sources = []
        for place, context in enumerate(contexts):
            with contextlib.ExitStack() as where:
                if devices is not None:
                    where.enter_context(jax.default_device(devices[place]))
                sources.append(from_function.source_from(dataset_fn, context, _source_of))
        reading = PerReplicaBatches(sources, topology, per_replica=per_replica, devices=devices)
        return DistributedDataset(reading, self.mesh, topology, options)

    def experimental_make_numpy_dataset(self, numpy_input: Any, session: Any = None) -> Any:
        """Deprecated: a dataset of the slices of arrays; `session` means nothing here.

        Args:
            numpy_input: An array, or a tuple or dict of arrays; a list of arrays is
                stacked into one.
            session: Ignored: there are no sessions.

        Returns:
            A dataset with one element for each row.
        """
        del session
        instead = "data.Dataset.from_tensor_slices"
        notices.deprecate("experimental_make_numpy_dataset", instead)
        arrays = jax.tree_util.tree_map(
            np.asarray, numpy_input, is_leaf=lambda node: isinstance(node, list)
        )
        return dataset_of_slices(arrays)


def _is_array(value: Any) -> bool:
    return isinstance(value, placement.Arrays)


def _refuse_per_replica(call: str, arguments: Any) -> None:
    for path, leaf in nest.leaves_with_path(arguments):
        if isinstance(leaf, PerReplica):
            raise DistributedValueError(
                f"{call} got a PerReplica value at {path}. Reduce it first: "
                "extended.reduce_to(op, value, destinations=variable)."
            )


def _source_of(dataset: Any, *, batch_size: int | None = None) -> Source:
    if isinstance(dataset, (DistributedDataset, DistributedIterator)):
        raise TypeError(
            f"the dataset is a {type(dataset).__name__}, which is distributed already. Iterate "
            "over it, or distribute the pipeline that it was made from."
        )
    if isinstance(dataset, Source) and batch_size is None:
        return dataset
    return source_of(dataset, batch_size=batch_size)


def _rows_of(found: Sequence[Any], size: int) -> tuple[tuple[Any, ...], ...]:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1 or len(found) % size:
        raise ValueError(
            f"logical_devices is {size!r}; expected an int that divides the number of devices, "
            f"{len(found)}."
        )
    return tuple(tuple(found[start : start + size]) for start in range(0, len(found), size))


def _own_array(leaf: Any) -> Any:
    """`leaf`; of a host array a copy, because the user may change theirs."""
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def component_of(leaf: Any, index: int) -> Any:
    """What one of this worker's replicas has of a leaf."""
    return leaf.values[index] if isinstance(leaf, DistributedValues) else leaf  # pyright: ignore
