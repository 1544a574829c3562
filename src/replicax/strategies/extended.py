"""`StrategyExtended`: what optimizers, layers and metrics are written with.

The documented methods for code that must know about distribution. Running
functions and handling their values is in `strategies.replication`. To write a
strategy of your own, subclass this; the table in ``docs/your_own_strategy.md``
lists what to override.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from replicax.backend import compat, devices, placement
from replicax.backend.collectives import Reduction
from replicax.backend.shards import ShardLayout
from replicax.context import stack
from replicax.core import nest, notices
from replicax.core.enums import ReduceOp, ReduceOpLike
from replicax.core.errors import ContextError, DistributedValueError
from replicax.core.options import bytes_per_pack_of
from replicax.execution.frame import current_frame
from replicax.strategies.input_verbs import ExtendedInput
from replicax.strategies.multi_step import MultiStepContext, StepPrograms, run_steps
from replicax.strategies.parts import part_of_argument, reduced_to_parts, runs_on_parts
from replicax.strategies.replication import Replication, component_of, without_views
from replicax.values.distributed import ComponentView, DistributedValues, Mirrored, PerReplica
from replicax.values.reduce import as_array, reduce_leaves
from replicax.values.regroup import same_python_value, select
from replicax.values.traced import TracedMirrored
from replicax.variables.colocation import colocated_on
from replicax.variables.distributed import DistributedVariable
from replicax.variables.partitioning import is_partitioned
from replicax.variables.sharded import ShardedVariable, VariablePart
from replicax.variables.storage import exclusively
from replicax.variables.update import UpdateSession
from replicax.variables.variable import Variable


class StrategyExtended(Replication, ExtendedInput):
    """Additional methods for algorithms that must know about distribution.

    Args:
        container_strategy: The strategy this belongs to.

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

    def __init__(self, container_strategy: Any) -> None:
        """Prepares for `container_strategy`; subclasses then call `set_replica_devices`."""
        super().__init__(container_strategy)
        self._step_programs = StepPrograms()

    # -- what a strategy is ------------------------------------------------------------------

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
        return self._placed(value, destinations)

    def _placed(self, value: Any, destinations: Any) -> Any:
        names = self._devices_of(destinations)
        if names is None:
            return value
        if len(names) == 1:
            if isinstance(value, Tracer):
                return value
            with compat.concretely():
                return compat.uncommitted(jax.device_put(value, devices.resolve_device(names[0])))
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
        with compat.concretely():
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
    def colocate_vars_with(self, colocate_with_variable: Any) -> Iterator[None]:
        """Variables created inside are on the devices of `colocate_with_variable`.

        Args:
            colocate_with_variable: A variable of this strategy, or what
                `non_slot_devices` returned.

        Returns:
            A context manager.

        Raises:
            ContextError: Outside this strategy's scope.
        """
        strategy = self._container_strategy
        if stack.get_strategy() is not strategy:
            raise ContextError(
                f"extended.colocate_vars_with of {strategy!r} was called inside "
                f"{stack.describe()}. Call it inside `with strategy.scope():`."
            )
        if isinstance(colocate_with_variable, Variable):
            self._require_own(colocate_with_variable, "extended.colocate_vars_with")
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


def _is_array(value: Any) -> bool:
    return isinstance(value, placement.Arrays)


def _refuse_per_replica(call: str, arguments: Any) -> None:
    for path, leaf in nest.leaves_with_path(arguments):
        if isinstance(leaf, PerReplica):
            raise DistributedValueError(
                f"{call} got a PerReplica value at {path}. Reduce it first: "
                "extended.reduce_to(op, value, destinations=variable)."
            )
