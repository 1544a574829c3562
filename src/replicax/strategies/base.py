"""`Strategy`: the verbs that a program is written with, the same for every strategy.

All that one strategy does differently is in its `StrategyExtended`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, overload

from replicax.backend import devices
from replicax.context import stack
from replicax.core.enums import ReduceOp, ReduceOpLike
from replicax.core.options import RunOptions
from replicax.core.protocols import DIFFERENT, CompiledCallable
from replicax.core.value_context import ValueContext
from replicax.strategies.extended import StrategyExtended
from replicax.strategies.input_verbs import InputVerbs
from replicax.strategies.logical_devices import LogicalDeviceVerbs
from replicax.strategies.v1_spelling import V1Spelling
from replicax.variables.partitioning import is_partitioned
from replicax.variables.registry import live_variables
from replicax.variables.variable import Variable


class Strategy(InputVerbs, LogicalDeviceVerbs, V1Spelling):
    """A list of devices and a policy for state and computation on them.

    Create one of its subclasses; then create variables in its ``scope()``, run
    a step on every replica with ``run``, and combine what the replicas return
    with ``reduce``.

    Args:
        extended: The strategy's own logic.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     w = rx.Variable(2.0)
        >>> batch = strategy.distribute_batch([1.0, 2.0, 3.0, 4.0])
        >>> result = strategy.run(lambda x: w * x, args=(batch,))
        >>> strategy.reduce("SUM", result, axis=0)
        Array(20., dtype=float32)
    """

    def __init__(self, extended: StrategyExtended) -> None:
        """Wraps `extended`."""
        self._extended = extended
        # A strategy whose `run` does something of its own must be asked every time.
        has_own_run = type(extended).run is not StrategyExtended.run
        self._repeatable = () if has_own_run else CompiledCallable

    def __repr__(self) -> str:
        names = ", ".join(self.extended.worker_devices)
        count = self.num_replicas_in_sync
        plural = "replica" if count == 1 else "replicas"
        return f"<{type(self).__name__}: {count} {plural} on {names}>"

    @property
    def extended(self) -> StrategyExtended:
        """Methods for libraries: optimizers, layers, metrics."""
        return self._extended

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas run in step."""
        return self._extended.num_replicas_in_sync

    @property
    def is_chief(self) -> bool:
        """Whether this worker has the duties of a chief: it writes, and speaks for all.

        True where there is one worker, so that a program may ask on every strategy.
        """
        return self._extended.should_checkpoint

    @property
    def cluster_resolver(self) -> Any:
        """The resolver that knows the cluster, or None for a single worker."""
        return getattr(self._extended, "cluster_resolver", None)

    def describe(self) -> str:
        """A table of replicas and devices, and one of the variables that are cut into pieces.

        Where there are several workers, it says which of them has each replica.

        Returns:
            The text, in lines.

        Example:
            >>> import replicax as rx
            >>> print(rx.MirroredStrategy(["CPU:0", "CPU:1"]).describe())
            MirroredStrategy, 2 replicas
            replica  device  kind
            0        CPU:0   cpu
            1        CPU:1   cpu
        """
        count = self.num_replicas_in_sync
        mesh = self._extended.mesh
        spans = mesh.num_logical_devices
        rows: list[tuple[str, ...]] = [("replica", "device", "kind")]
        for replica_id, device in enumerate(mesh.devices):
            rows.append((str(replica_id), devices.device_name(device), device.device_kind))
        if spans > 1:
            names = [", ".join(map(devices.device_name, row)) for row in mesh.logical_devices]
            column = ["logical devices", *names]
            rows = [(*row, cell) for row, cell in zip(rows, column, strict=True)]
        if mesh.spans_workers:
            column = ["worker", *(self._extended._worker_name(d) for d in mesh.devices)]
            rows = [(*row, cell) for row, cell in zip(rows, column, strict=True)]
        title = f"{type(self).__name__}, {count} replica{'s' if count > 1 else ''}"
        title += f" of {spans} logical devices" if spans > 1 else ""
        if self._extended.sharding is not None:
            title += f", {self._extended.sharding._describe()} split over them"
        pieces = [_piece_row(v) for v in live_variables(self) if is_partitioned(v)]
        head = ("partitioned variable", "shape", "pieces", "on each device")
        return "\n".join([title, *_table(rows), *(_table([head, *pieces]) if pieces else ())])

    def scope(self) -> contextlib.AbstractContextManager[Strategy]:
        """A context in which this strategy is the current one and creates the variables.

        It may be nested and entered again.

        Returns:
            A context manager that gives the strategy.

        Example:
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["CPU:0"])
            >>> with strategy.scope():
            ...     v = rx.Variable(1.0)
            >>> v
            MirroredVariable:{
              0: <rx.Variable 'Variable' shape=() dtype=float32, numpy=1.>
            }
        """
        return _Scope(self)

    @overload
    def run(
        self,
        fn: Callable[..., None],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: RunOptions | None = None,
    ) -> None: ...

    @overload
    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: RunOptions | None = None,
    ) -> Any: ...

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: RunOptions | None = None,
    ) -> Any:
        """Calls `fn` on every replica, in replica context.

        Every distributed value among the arguments is replaced by the replica's
        component. Results are merged leaf by leaf: what is the same object on all
        replicas stays that, the rest becomes `PerReplica`; with one replica the
        result is as returned. Outside ``function``, `fn` is ordinary Python, called
        once per replica; inside, or if `fn` is itself a ``function``, it is compiled
        into one program for all replicas.

        Args:
            fn: The function.
            args: Positional arguments, nests of values and distributed values.
            kwargs: Keyword arguments.
            options: How to run it.

        Returns:
            The merged results, in the nest that `fn` returned.

        Raises:
            ContextError: If called inside ``run`` of this strategy, or inside another scope.
            BaseException: What `fn` raised on one of the replicas, unchanged.
            DistributedValueError: If an argument has components for the replicas of another
                strategy.

        Example:
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
            >>> batch = strategy.distribute_batch([1.0, 2.0, 3.0])
            >>> strategy.run(lambda x: x.sum(), args=(batch,))
            PerReplica:{
              0: Array(3., dtype=float32),
              1: Array(3., dtype=float32)
            }
        """
        repeatable: Any = fn
        if options is None and isinstance(repeatable, self._repeatable):
            result = repeatable._repeat(self, args, kwargs)
            if result is not DIFFERENT:
                return result
        stack.require_outside_run(self, "Strategy.run")
        return self._extended.run(fn, tuple(args), dict(kwargs or {}), options)

    def reduce(
        self,
        reduce_op: ReduceOpLike,
        value: Any,
        axis: int | tuple[int, ...] | None = None,
    ) -> Any:
        """Combines a per-replica `value` (a nest) into one value.

        Args:
            reduce_op: ``ReduceOp.SUM`` or ``ReduceOp.MEAN``, or its name.
            value: What ``run`` returned, or any nest of values.
            axis: None combines across replicas only; an int (or a tuple) also over
                that dim of every component, so that an uneven last batch counts right.

        Returns:
            An array for each leaf of `value`, on one device.

        Raises:
            ReductionError: If `reduce_op` is neither, or components cannot be combined.

        Example:
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
            >>> batch = strategy.distribute_batch([1.0, 2.0, 6.0])
            >>> strategy.reduce(rx.ReduceOp.MEAN, batch, axis=0)
            Array(3., dtype=float32)
        """
        stack.require_outside_run(self, "Strategy.reduce")
        return self._extended.reduce(ReduceOp.parse(reduce_op), value, axis)

    def gather(self, value: Any, axis: int) -> Any:
        """The components of `value` (a nest) of all replicas, concatenated along `axis`.

        Args:
            value: A nest of values.
            axis: The dim to concatenate; the components may differ in it.

        Returns:
            An array for each leaf of `value`, on one device.

        Raises:
            ReductionError: If components differ in another dim, or have no dims.

        Example:
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
            >>> strategy.gather(strategy.distribute_batch([1, 2, 3]), axis=0)
            Array([1, 2, 3], dtype=int32)
        """
        stack.require_outside_run(self, "Strategy.gather")
        return self._extended.gather(value, axis)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """The components of `value` on this worker, in replica order.

        A plain value comes back as a tuple of one; a nest as one nest per replica.

        Args:
            value: A nest of values.

        Returns:
            One value for each replica of this worker.

        Example:
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
            >>> strategy.experimental_local_results(strategy.distribute_batch([1, 2]))
            (Array([1], dtype=int32), Array([2], dtype=int32))
        """
        return self._extended.local_results(value)

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Any]
    ) -> Any:
        """One value (or nest) per replica, made by ``value_fn(context)``.

        Args:
            value_fn: Called once for each replica of this worker, with a `ValueContext`.

        Returns:
            A `PerReplica` for each leaf of what `value_fn` returns.

        Example:
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
            >>> value = strategy.experimental_distribute_values_from_function(
            ...     lambda ctx: 10.0 * ctx.replica_id_in_sync_group)
            >>> strategy.experimental_local_results(value)
            (0.0, 10.0)
        """
        call = "Strategy.experimental_distribute_values_from_function"
        stack.require_outside_run(self, call)
        return self._extended.values_from_function(value_fn)

    def distribute_batch(self, batch: Any) -> Any:
        """Divides one global batch (a nest of host arrays) among the replicas on dim 0.

        Contiguous chunks of ceil(m / N); the last ones may be short or empty. With
        one replica the arrays come back bare.

        Args:
            batch: A nest of arrays, all with the same number of rows.

        Returns:
            A `PerReplica` for each leaf.

        Raises:
            BatchError: If the leaves cannot be divided on dim 0, or differ in it.

        Example:
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
            >>> strategy.distribute_batch([1, 2, 3])
            PerReplica:{
              0: Array([1, 2], dtype=int32),
              1: Array([3], dtype=int32)
            }
        """
        stack.require_outside_run(self, "Strategy.distribute_batch")
        return self._extended.distribute_batch(batch)


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The rows as lines, the cells of a column below one another."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _piece_row(variable: Variable) -> tuple[str, ...]:
    pieces = variable.partition_dimensions
    piece = tuple(size // number for size, number in zip(variable.shape, pieces, strict=True))
    return variable.name, str(variable.shape), " x ".join(map(str, pieces)), str(piece)


class _Scope(contextlib.AbstractContextManager[Strategy]):
    """Entering pushes the strategy; the object holds no state and can be entered again."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def __enter__(self) -> Strategy:
        stack.require_outside_run(self._strategy, "Strategy.scope")
        stack.push(stack.Entry(self._strategy, stack.Mode.SCOPE))
        return self._strategy

    def __exit__(self, *_: object) -> None:
        stack.pop(self._strategy)
