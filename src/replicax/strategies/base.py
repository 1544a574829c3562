"""`Strategy`: the verbs that a program is written with, the same for every strategy.

All that one strategy does differently is in its `StrategyExtended`. What happens to data is in
`replicax.input`, which knows no strategy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import jax
from jax import lax
from jax.core import Tracer
from jax.sharding import PartitionSpec

from replicax.backend import devices, partition
from replicax.backend.mesh import ReplicaMesh
from replicax.core import companions, nest, notices, recording
from replicax.core.enums import AutoShardPolicy, InputReplicationMode, ReduceOp, ReduceOpLike
from replicax.core.errors import DistributedValueError, OutOfRangeError
from replicax.core.options import InputOptions, RunOptions
from replicax.core.shown import Description
from replicax.core.tracebacks import fold
from replicax.core.value_context import ValueContext
from replicax.engine.contexts import stack
from replicax.engine.functions.function import Function
from replicax.engine.protocols import DIFFERENT
from replicax.engine.trace.assigned import assigned
from replicax.engine.trace.frame import current_frame
from replicax.input.context import InputContext
from replicax.input.dataset import DistributedDataset
from replicax.input.iterator import DistributedIterator
from replicax.input.sharding import parse_policy
from replicax.strategies.extended import StrategyExtended
from replicax.strategies.prediction import Prediction
from replicax.variables.registry import live_variables
from replicax.variables.variable import Variable, is_partitioned

_GRAPH_ERA = {
    "configure": "a strategy is complete when it is created. Pass devices to its constructor.",
    "update_config_proto": "there is no session, and so no ConfigProto to update.",
}
DatasetFn = Callable[[InputContext], Any]


class Strategy:
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
        self._extended = extended
        # A strategy whose `run` does something of its own must be asked every time.
        has_own_run = type(extended).run is not StrategyExtended.run
        self._repeatable = () if has_own_run else Function

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
            The text, in lines; notebooks show it as HTML.

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
        return Description(title, [rows, [head, *pieces]] if pieces else [rows])

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
            DistributedValueError: If `args` is neither tuple nor list, or an argument has
                components for the replicas of another strategy.

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
        told = recording.recorder
        if told is not None and told.begin_call(fn):
            try:
                return self.run(fn, args, kwargs, options)
            finally:
                told.end_call()
        try:
            repeatable: Any = fn
            if options is None and isinstance(repeatable, self._repeatable):
                result = repeatable._repeat(self, args, kwargs)
                if result is not DIFFERENT:
                    return result
            stack.require_outside_run(self, "Strategy.run")
            if not isinstance(args, tuple | list):
                raise DistributedValueError(
                    f"args of Strategy.run is {args!r}; expected a tuple or list of arguments. For "
                    "one argument write args=(value,), with the comma."
                )
            return self._extended.run(fn, tuple(args), dict(kwargs or {}), options)
        except Exception as error:
            fold(error)
            raise

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
        with recording.within(recording.INPUT):
            return self._extended.distribute_batch(batch)

    # -- input ----------------------------------------------------------------------------

    def distribute_dataset(
        self,
        dataset: Any,
        options: InputOptions | None = None,
        *,
        batch_size: int | None = None,
        auto_shard_policy: AutoShardPolicy | str | None = None,
    ) -> DistributedDataset:
        """A dataset that divides each global batch of `dataset` among the replicas.

        Args:
            dataset: A pipeline of global batches: a Grain dataset or loader, a
                ``data.Dataset``, a TensorFlow, PyTorch, Hugging Face or Keras dataset,
                an iterable of batches, a generator function, or arrays.
            options: How batches are handed to the replicas.
            batch_size: The global batch size, for arrays.
            auto_shard_policy: How the data is divided among workers; what `dataset`
                itself asks for if None.

        Returns:
            The distributed dataset. Iterate over it for a value for each step.

        Raises:
            ReplicationModeError: If `options` ask for one pipeline per replica.
            ShardingError: If files were to be divided and there is not one for each worker.

        Example:
            >>> import numpy as np
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
            >>> dataset = strategy.distribute_dataset(np.arange(5), batch_size=4)
            >>> for batch in dataset:
            ...     print(strategy.experimental_local_results(batch))
            (Array([0, 1], dtype=int32), Array([2, 3], dtype=int32))
            (Array([4], dtype=int32), Array([], shape=(0,), dtype=int32))
        """
        stack.require_outside_run(self, "Strategy.distribute_dataset")
        return self.extended._distribute_dataset(
            dataset,
            _checked(options),
            batch_size=batch_size,
            auto_shard_policy=parse_policy(auto_shard_policy),
        )

    def experimental_distribute_dataset(
        self,
        dataset: Any,
        options: InputOptions | None = None,
        *,
        batch_size: int | None = None,
        auto_shard_policy: AutoShardPolicy | str | None = None,
    ) -> DistributedDataset:
        """`distribute_dataset` by the name that the documents use.

        Args:
            dataset: As for `distribute_dataset`.
            options: As for `distribute_dataset`.
            batch_size: As for `distribute_dataset`.
            auto_shard_policy: As for `distribute_dataset`.

        Returns:
            The distributed dataset.
        """
        return self.distribute_dataset(
            dataset, options, batch_size=batch_size, auto_shard_policy=auto_shard_policy
        )

    def distribute_datasets_from_function(
        self, dataset_fn: DatasetFn, options: InputOptions | None = None
    ) -> DistributedDataset:
        """A dataset of which each replica takes one batch of the pipeline of its worker.

        Args:
            dataset_fn: Makes the pipeline of one worker (or of one replica, if `options`
                say so) from an `InputContext`; its batches are those of one replica.
            options: How batches are handed to the replicas.

        Returns:
            The distributed dataset. Iterate over it for a value for each step.

        Example:
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
            >>> dataset = strategy.distribute_datasets_from_function(
            ...     lambda context: [[1, 2], [3, 4], [5, 6]])
            >>> for batch in dataset:
            ...     print(strategy.experimental_local_results(batch))
            (Array([1, 2], dtype=int32), Array([3, 4], dtype=int32))
            (Array([5, 6], dtype=int32), Array([], shape=(0,), dtype=int32))
        """
        stack.require_outside_run(self, "Strategy.distribute_datasets_from_function")
        return self.extended._distribute_datasets_from_function(dataset_fn, _checked(options))

    def experimental_distribute_datasets_from_function(
        self, dataset_fn: DatasetFn, options: InputOptions | None = None
    ) -> DistributedDataset:
        """`distribute_datasets_from_function` by the name that the documents use.

        Args:
            dataset_fn: As for `distribute_datasets_from_function`.
            options: As for `distribute_datasets_from_function`.

        Returns:
            The distributed dataset.
        """
        return self.distribute_datasets_from_function(dataset_fn, options)

    def experimental_make_numpy_dataset(self, numpy_input: Any, session: Any = None) -> Any:
        """Deprecated: ``data.Dataset.from_tensor_slices``.

        A list of arrays is stacked into one; tuples and dicts are structure.

        Args:
            numpy_input: An array, or a tuple, dict or list of arrays.
            session: Ignored: there are no sessions.

        Returns:
            A dataset with one element for each row.
        """
        return self.extended.experimental_make_numpy_dataset(numpy_input, session)

    def predict(self, fn: Callable[[Any], Any], dataset: Any) -> Any:
        """What `fn` returns for every example of one pass, in the order of the input.

        Args:
            fn: Called by ``run`` with each batch; returns a nest of arrays with one row
                for every example. A plain function, or a ``function``.
            dataset: A `DistributedDataset`, or anything that `distribute_dataset` takes.

        Returns:
            A nest of host arrays.

        Example:
            >>> import numpy as np
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
            >>> dataset = strategy.distribute_dataset(np.arange(5), batch_size=4)
            >>> strategy.predict(lambda x: x * 10, dataset)
            array([ 0, 10, 20, 30, 40], dtype=int32)
        """
        if not isinstance(dataset, DistributedDataset):
            dataset = self.distribute_dataset(dataset)
        prediction = Prediction(self)
        for batch in dataset:
            prediction.add(batch, self.run(fn, args=(batch,)))
        return prediction.result()

    # -- logical devices ------------------------------------------------------------------
    # They say where the pieces of a value live while a compiled step computes with it; its value
    # stays what it is. XLA places what is not annotated.

    def experimental_split_to_logical_devices(
        self, tensor: Any, partition_dimensions: Sequence[int]
    ) -> Any:
        """`tensor`, split among the logical devices of its replica in a compiled ``run``.

        What is computed from it is partitioned accordingly, as far as XLA can. In an eager
        ``run`` it is only checked.

        Args:
            tensor: A value of the replica.
            partition_dimensions: Into how many pieces each dim is cut; their product is the
                number of logical devices of a replica.

        Returns:
            `tensor`, with its layout.

        Raises:
            ValueError: If there is not one number for each dim, if their product is not the
                number of logical devices, or if a dim cannot be divided by its number.

        Example:
            >>> import jax.numpy as jnp
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(logical_devices=4)
            >>> @rx.function
            ... def step(x):
            ...     x = strategy.experimental_split_to_logical_devices(x, [2, 2])
            ...     return jnp.sum(x * x)
            >>> result = strategy.run(step, args=(jnp.ones((4, 6)),))
            >>> strategy.experimental_local_results(result)
            (Array(24., dtype=float32), Array(24., dtype=float32))
        """
        mesh = self.extended.mesh
        pieces = partition.checked_pieces(partition_dimensions, mesh)
        return nest.map_leaves(lambda leaf: _split(leaf, pieces, mesh), tensor)

    def experimental_replicate_to_logical_devices(self, tensor: Any) -> Any:
        """`tensor`, whole on every logical device of its replica in a compiled ``run``.

        Args:
            tensor: A value of the replica.

        Returns:
            `tensor`, with its layout.
        """
        mesh = self.extended.mesh
        return nest.map_leaves(lambda leaf: _constrained(leaf, PartitionSpec(), mesh), tensor)

    def experimental_assign_to_logical_device(self, tensor: Any, logical_device_id: int) -> Any:
        """`tensor`, made on one logical device of each replica in a compiled ``run``.

        The operation that makes it runs on this device only, and the others get the result from
        there. So it pays for an operation that is large beside what it makes: a jitted function is
        one operation. Where it needs other replicas or the host, or where replicas take different
        branches, every logical device computes it, as it does what is not annotated. In an eager
        ``run`` the number is only checked.

        Args:
            tensor: A value of the replica.
            logical_device_id: The number of a logical device of the replica.

        Returns:
            `tensor`, with its place.

        Raises:
            ValueError: If there is no logical device of that number.

        Example:
            >>> import jax
            >>> import jax.numpy as jnp
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(logical_devices=4)
            >>> @rx.function
            ... def step(x):
            ...     y = jax.jit(lambda x: jnp.sum(x * x))(x)
            ...     return strategy.experimental_assign_to_logical_device(y, 3)
            >>> result = strategy.run(step, args=(jnp.ones((4, 6)),))
            >>> strategy.experimental_local_results(result)
            (Array(24., dtype=float32), Array(24., dtype=float32))
        """
        count = self.extended.mesh.num_logical_devices
        is_int = isinstance(logical_device_id, int) and not isinstance(logical_device_id, bool)
        if not is_int or not 0 <= logical_device_id < count:
            raise ValueError(
                f"logical_device_id is {logical_device_id!r}; a replica has the logical devices 0 "
                f"to {count - 1} here."
                if count > 1
                else f"logical_device_id is {logical_device_id!r}; a replica has one logical "
                "device here, 0."
            )
        mesh = self.extended.mesh
        return nest.map_leaves(
            lambda leaf: assigned(leaf, logical_device_id) if _has_pieces(leaf, mesh) else leaf,
            tensor,
        )

    # -- the names of tf.compat.v1 --------------------------------------------------------
    # Each says once what to write instead. What only a graph and a session could do is not here.

    if not TYPE_CHECKING:  # or type checkers would accept every name

        def __getattr__(self, name: str) -> Any:
            """Says why a name of the graph era is missing."""
            shown = f"{type(self).__name__!r} object has no attribute {name!r}"
            reason = _GRAPH_ERA.get(name)
            text = shown if reason is None else f"{shown}: {reason}"
            raise AttributeError(text, name=name, obj=self)

    def experimental_run_v2(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: RunOptions | None = None,
    ) -> Any:
        """Deprecated: ``run``.

        Args:
            fn: As for ``run``.
            args: As for ``run``.
            kwargs: As for ``run``.
            options: As for ``run``.

        Returns:
            What ``run`` returns.
        """
        notices.deprecate("Strategy.experimental_run_v2", "Strategy.run")
        return self.run(fn, args, kwargs, options)

    def experimental_run(self, fn: Callable[..., Any], input_iterator: Any = None) -> Any:
        """Deprecated: ``run``, with the next element of `input_iterator` as argument.

        Args:
            fn: As for ``run``.
            input_iterator: Gives the argument; without it `fn` gets none.

        Returns:
            What ``run`` returns.

        Raises:
            OutOfRangeError: If the iterator has ended.
        """
        notices.deprecate("Strategy.experimental_run", "Strategy.run")
        with self.scope():
            if input_iterator is None:
                return self.run(fn)
            try:
                item = next(input_iterator)
            except StopIteration:
                raise OutOfRangeError(
                    "the input_iterator of Strategy.experimental_run has ended. Make a new one "
                    "for every epoch."
                ) from None
            return self.run(fn, args=(item,))

    def make_dataset_iterator(self, dataset: Any) -> DistributedIterator:
        """Deprecated: ``iter(distribute_dataset(dataset))``.

        Args:
            dataset: As for ``distribute_dataset``.

        Returns:
            The iterator.
        """
        notices.deprecate(
            "Strategy.make_dataset_iterator", "iter(Strategy.experimental_distribute_dataset(...))"
        )
        return self.distribute_dataset(dataset).__iter__()

    def make_input_fn_iterator(
        self,
        input_fn: Callable[[InputContext], Any],
        replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER,
    ) -> DistributedIterator:
        """Deprecated: ``iter(distribute_datasets_from_function(input_fn))``.

        Args:
            input_fn: As the `dataset_fn` of ``distribute_datasets_from_function``.
            replication_mode: How often `input_fn` is called.

        Returns:
            The iterator.
        """
        notices.deprecate(
            "Strategy.make_input_fn_iterator",
            "iter(Strategy.distribute_datasets_from_function(...))",
        )
        options = InputOptions(experimental_replication_mode=replication_mode)
        return self.distribute_datasets_from_function(input_fn, options).__iter__()

    def unwrap(self, value: Any) -> tuple[Any, ...]:
        """Deprecated: ``experimental_local_results``.

        Args:
            value: As for ``experimental_local_results``.

        Returns:
            One value for each replica of this worker.
        """
        notices.deprecate("Strategy.unwrap", "Strategy.experimental_local_results")
        return self.experimental_local_results(value)

    def group(self, value: Any, name: str | None = None) -> None:
        """Deprecated: nothing. What made `value` has happened, there is nothing left to group.

        Args:
            value: Ignored.
            name: Ignored.
        """
        del value, name
        notices.deprecate("Strategy.group", "nothing (there is no graph to order)")

    @contextlib.contextmanager
    def colocate_vars_with(self, colocate_with_variable: Any) -> Iterator[None]:
        """Deprecated: ``extended.colocate_vars_with``.

        Args:
            colocate_with_variable: As for ``extended.colocate_vars_with``.

        Returns:
            A context manager.
        """
        notices.deprecate("Strategy.colocate_vars_with", "Strategy.extended.colocate_vars_with")
        with self.extended.colocate_vars_with(colocate_with_variable):
            yield


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
        companions.connect()
        stack.push(stack.Entry(self._strategy, stack.Mode.SCOPE))
        return self._strategy

    def __exit__(self, *_: object) -> None:
        stack.pop(self._strategy)


def _checked(options: Any) -> InputOptions:
    if options is None:
        return InputOptions()
    if not isinstance(options, InputOptions):
        raise TypeError(f"options is {options!r}; expected an InputOptions, or None.")
    return options


def _split(leaf: Any, pieces: list[int], mesh: ReplicaMesh) -> Any:
    partition.require_fit(pieces, jax.numpy.shape(leaf), "the tensor")
    return _constrained(leaf, partition.spec_of_pieces(pieces, mesh), mesh)


def _constrained(leaf: Any, spec: PartitionSpec, mesh: ReplicaMesh) -> Any:
    return lax.with_sharding_constraint(leaf, spec) if _has_pieces(leaf, mesh) else leaf


def _has_pieces(leaf: Any, mesh: ReplicaMesh) -> bool:
    """Whether `leaf` is computed by several logical devices together."""
    frame = current_frame()
    is_replica = frame is not None and frame.in_replica
    return mesh.num_logical_devices > 1 and is_replica and isinstance(leaf, Tracer)
