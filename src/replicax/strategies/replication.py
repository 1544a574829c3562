"""Runs functions on replicas and handles what they take and return, for every strategy.

Strategies differ in their mesh, in how variables are created and in how values
are reduced; `StrategyExtended` builds on this class, and strategies on that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from replicax.backend import compat, devices, placement, workers
from replicax.backend.collectives import Reduction
from replicax.backend.mesh import ReplicaMesh, logical_mesh
from replicax.backend.shards import ShardLayout
from replicax.context import stack
from replicax.context.eager_peers import EagerPeers, EagerSession
from replicax.context.replica import ReplicaContext
from replicax.context.solo import EagerSoloPeers, SoloPeers
from replicax.core import nest, notices
from replicax.core.enums import ReduceOp
from replicax.core.errors import ContextError, DistributedValueError, VariableError
from replicax.core.options import RunOptions
from replicax.core.protocols import CompiledCallable
from replicax.core.sharding import Sharding
from replicax.core.typing import Device
from replicax.core.value_context import ValueContext
from replicax.execution import epoch
from replicax.execution.eager import ReplicaThreads
from replicax.execution.frame import current_frame
from replicax.execution.host_loop import compiled_run_of_loop
from replicax.input import placing
from replicax.strategies.cross_device_ops import CrossDeviceOps
from replicax.values.distributed import ComponentView, DistributedValues, Mirrored, PerReplica
from replicax.values.reduce import gather_leaf, reduce_leaf
from replicax.values.regroup import regroup, select
from replicax.variables.capture import check_run_options, run_traced
from replicax.variables.colocation import asked_devices, asked_primary
from replicax.variables.creation import build_variable
from replicax.variables.partitioning import NO_RULES, PartitionRules, Rules
from replicax.variables.variable import Variable

_DEFAULT_OPTIONS = RunOptions()
_serials = itertools.count(1)


class Replication:
    """Replicas on the devices of a mesh.

    Args:
        container_strategy: The strategy this belongs to.

    Attributes:
        cluster_resolver: What knows the cluster; None for a single worker.
        sharding: What of the training state is split over the replicas; None for nothing.
    """

    cluster_resolver: Any = None
    sharding: Sharding | None = None

    def __init__(self, container_strategy: Any) -> None:
        """Prepares for `container_strategy`; subclasses then call `set_replica_devices`."""
        self._container_strategy = container_strategy
        self._serial = next(_serials)  # no other strategy of this process has it, or will
        self._threads: ReplicaThreads | None = None
        self._mesh: ReplicaMesh | None = None
        self._reduction = Reduction()
        self._partition_rules = NO_RULES

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
        self._reduction = cross_device_ops._reduction(self.mesh)

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

    # -- sharding ----------------------------------------------------------------------------

    def set_sharding(self, sharding: Sharding | None) -> None:
        """Says what is split over the replicas; the ``__init__`` of a strategy may call it.

        Args:
            sharding: What to split; None for nothing.

        Raises:
            TypeError: If it is no `Sharding`.
            ValueError: If replicas span several logical devices.
        """
        if sharding is None:
            return
        if not isinstance(sharding, Sharding):
            raise TypeError(
                f"sharding is {sharding!r}; expected an experimental.Sharding, such as "
                "Sharding(stage=3), or None."
            )
        if self.mesh.num_logical_devices > 1:
            raise ValueError(
                f"sharding={sharding!r} splits over replicas of one device each; these span "
                f"{self.mesh.num_logical_devices} logical devices. Leave out one of the two."
            )
        self.sharding = sharding

    def _split_layout(self, variable: Variable) -> ShardLayout | None:
        """How the slots and gradients of a parameter are split; None if they are whole."""
        if self.sharding is None or variable.strategy is not self._container_strategy:
            return None
        layout = variable._storage.layout
        if layout is not None or self.sharding.stage == 3 or not variable.trainable:
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
        entry = stack.top()
        if entry is not None and entry.mode in (stack.Mode.MERGE, stack.Mode.UPDATE):
            raise ContextError(
                f"Strategy.run was called inside {stack.describe()}, while the replicas wait. Do "
                "the work in the replica function, before or after merge_call."
            )
        if not callable(fn):
            raise TypeError(f"Strategy.run needs a callable as fn; got {fn!r}.")
        if options is not None and not isinstance(options, RunOptions):
            raise TypeError(f"options of Strategy.run is {options!r}; expected a RunOptions.")
        args, kwargs = self._own_values(args, kwargs)
        if isinstance(fn, CompiledCallable):
            return fn._run_replicated(self._container_strategy, args, kwargs, options)
        compiled_run = compiled_run_of_loop()
        if compiled_run is not None and current_frame() is None:
            return compiled_run(self._container_strategy, fn, args, kwargs, options)
        return self._call_for_each_replica_inline(fn, args, kwargs, options)

    def _own_values(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with what other strategies have mirrored as plain arrays.

        Raises:
            DistributedValueError: If one has components for the replicas of another strategy.
        """
        leaves, structure = nest.flatten((args, kwargs))
        foreign = {
            index: leaf
            for index, leaf in enumerate(leaves)
            if isinstance(leaf, (PerReplica, Mirrored)) and leaf.mesh != self.mesh
        }
        if not foreign:
            return args, kwargs
        paths = [path for path, _ in nest.leaves_with_path((args, kwargs))]
        for index, leaf in foreign.items():
            if isinstance(leaf, PerReplica):
                raise DistributedValueError(
                    f"the argument of run at {paths[index]} has a component for each replica of "
                    f"another strategy, on {leaf.mesh.described()}, and not for those of "
                    f"{self._container_strategy!r}. Distribute the value with the strategy that "
                    "runs it, or reduce it first with the one that made it."
                )
        own = [leaf.read_value() if i in foreign else leaf for i, leaf in enumerate(leaves)]
        return nest.unflatten(structure, own)

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

    def _call_for_each_replica_inline(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: RunOptions | None,
    ) -> Any:
        """Runs `fn` as part of the program being traced, or eagerly outside of one."""
        if current_frame() is not None:
            return self._run_traced(fn, args, kwargs, options)
        if compat.is_transforming():
            raise ContextError(
                "Strategy.run was called inside a JAX transformation (jit, grad, vmap, scan) that "
                "Replicax did not start. Use replicax.function instead of jax.jit, and take "
                "gradients inside the replica function."
            )
        check_run_options(options or _DEFAULT_OPTIONS, nest.flatten((args, kwargs))[0])
        _check_fit((args, kwargs))
        if options is not None and options.experimental_xla_options:
            notices.notify_once(
                "eager xla options",
                "RunOptions.experimental_xla_options has no effect on an eager run: there is no "
                "program to compile. Put replicax.function around the function.",
            )
        if self.num_replicas_in_sync == 1:
            return self._run_alone(fn, args, kwargs)
        return self._run_on_threads(fn, args, kwargs)

    def _run_traced(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: RunOptions | None,
    ) -> Any:
        """Runs `fn` on every replica as part of the program being traced."""
        frame = current_frame()
        assert frame is not None
        return run_traced(
            self._container_strategy,
            fn,
            args,
            kwargs,
            frame=frame,
            mesh=self.mesh,
            reduction=self._reduction,
            options=options or _DEFAULT_OPTIONS,
        )

    def _run_alone(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        strategy = self._container_strategy
        context = ReplicaContext._of(strategy, self._solo_peers())
        args, kwargs = select((args, kwargs), 0)
        try:
            with (
                epoch.eager_run(),
                stack.entered(stack.Entry(strategy, stack.Mode.REPLICA, context)),
                jax.default_device(self.mesh.devices[0]),
                epoch.replica_token(0),
            ):
                result = fn(*args, **kwargs)
        finally:
            context._end()
        return without_views(result)

    def _solo_peers(self) -> SoloPeers:
        return EagerSoloPeers(self._container_strategy)

    def _run_on_threads(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        strategy, mesh, local = self._container_strategy, self.mesh, self.mesh.local_replicas
        if self._threads is None:
            self._threads = ReplicaThreads(len(local), local.start)
        session = EagerSession(strategy, mesh, self._threads, self._reduction)
        session.remember((args, kwargs))
        contexts = {
            replica_id: ReplicaContext._of(strategy, EagerPeers(session, replica_id), replica_id)
            for replica_id in local
        }
        surroundings = compat.capture_thread_state()

        def task(replica_id: int) -> Any:
            own_args, own_kwargs = select((args, kwargs), replica_id)
            entry = stack.Entry(strategy, stack.Mode.REPLICA, contexts[replica_id])
            with (
                surroundings(),
                stack.replaced_by(entry),
                jax.default_device(mesh.devices[replica_id]),
                epoch.replica_token(replica_id),
            ):
                return fn(*own_args, **own_kwargs)

        with workers.told_of_failures(mesh), epoch.eager_run():
            try:
                results = self._threads.run([lambda i=i: task(i) for i in local])
            finally:
                for context in contexts.values():
                    context._end()
            arguments = {id(leaf) for leaf in nest.flatten((args, kwargs))[0]}
            return regroup(
                results,
                mesh,
                find_mirrored=session.find_mirrored,
                arguments=arguments,
                shared=session.shared,
            )

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


def _check_fit(arguments: Any) -> None:
    """Refuses 64-bit arrays that JAX would truncate as soon as they are used.

    And values of which a part is deleted, which JAX would refuse without their names.
    """
    for path, leaf in nest.leaves_with_path(arguments):
        name = f"the argument of run at {path}"
        if isinstance(leaf, (PerReplica, Mirrored)):
            leaf._refuse_deleted(name)
        if isinstance(leaf, Mirrored):
            leaf = leaf.read_value()
        for value in leaf._parts() if isinstance(leaf, PerReplica) else (leaf,):
            if isinstance(value, (np.ndarray, np.generic, jax.Array)):
                placement.narrowed(value, name)


def without_views(result: Any) -> Any:
    """`result` with every copy of a variable replaced by the variable."""

    def merged(leaf: Any) -> Any:
        if isinstance(leaf, ComponentView) and leaf._owner is not None:
            return leaf._owner
        return leaf

    return nest.map_leaves(merged, result)
