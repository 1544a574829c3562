"""The replica context: what a replica function may ask and do.

How replicas talk to each other depends on the executor; that is behind `Peers`
(eager threads in `engine.eager.peers`, one traced program in
`engine.compiled.peers`, a single replica in `engine.eager.solo`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from replicax.core.enums import ReduceOp, ReduceOpLike
from replicax.core.errors import ContextError
from replicax.core.options import bytes_per_pack_of
from replicax.engine.contexts import stack
from replicax.engine.protocols import StrategyLike


class Peers(Protocol):
    """The other replicas, as one replica reaches them."""

    @property
    def replica_id(self) -> Any:
        """This replica's index: an int, or a traced int32."""
        ...

    def merge(
        self, merge_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Stops every replica, runs `merge_fn` once, continues with its result."""
        ...

    def together(
        self,
        label: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        own: Any = None,
        alone: Callable[[], Any] | None = None,
    ) -> Any:
        """Like `merge` with ``fn(*args)``, for the library's own use; see `ReplicaContext`."""
        ...

    def all_reduce(self, op: ReduceOp, value: Any, options: Any) -> Any:
        """Each leaf of a nest combined over all replicas."""
        ...

    def all_gather(self, value: Any, axis: int) -> Any:
        """Each leaf of a nest, of every replica, concatenated along `axis`."""
        ...


class ReplicaContext:
    """One replica's view of a ``Strategy.run``.

    Obtained inside the replica function with ``get_replica_context()``; it is
    valid only there.

    Args:
        strategy: The strategy that runs the replica.
        replica_id_in_sync_group: The index of the replica.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> def replica_fn():
        ...     ctx = rx.get_replica_context()
        ...     return ctx.all_reduce(rx.ReduceOp.SUM, ctx.replica_id_in_sync_group + 1.0)
        >>> strategy.run(replica_fn).numpy()
        array(3., dtype=float32)
    """

    def __init__(self, strategy: StrategyLike, replica_id_in_sync_group: Any) -> None:
        """A context that describes a replica; only ``run`` makes one that can act."""
        self._strategy = strategy
        self._replica_id = replica_id_in_sync_group
        self._peers: Peers | None = None
        self._ended = False
        self._is_ambient = False

    @classmethod
    def _of(
        cls,
        strategy: StrategyLike,
        peers: Peers,
        replica_id: int | None = None,
        *,
        is_ambient: bool = False,
    ) -> ReplicaContext:
        """The context of a running replica.

        Args:
            strategy: The strategy that runs it.
            peers: How it reaches the others.
            replica_id: Its id, where that is a thread's own.
            is_ambient: Whether it is in force where no strategy was entered.
        """
        context = cls(strategy, replica_id)
        context._peers = peers
        context._is_ambient = is_ambient
        return context

    def _is_of_same_run(self, other: ReplicaContext) -> bool:
        """Whether both are contexts of one run, perhaps of different replicas."""
        return self._strategy is other._strategy and self._ended == other._ended

    def _end(self) -> None:
        """Makes every later use an error: the run is over."""
        self._ended = True

    def __repr__(self) -> str:
        replica_id = self._replica_id
        if replica_id is None and self._peers is not None and not self._ended:
            replica_id = self._peers.replica_id
        state = "ended" if self._ended else f"replica {replica_id}"
        return f"<ReplicaContext of {self._strategy!r}, {state}>"

    @property
    def strategy(self) -> Any:
        """The strategy that runs this replica."""
        self._require_current("strategy")
        return self._strategy

    @property
    def replica_id_in_sync_group(self) -> Any:
        """The index of this replica, from 0; compiled, a traced int32."""
        self._require_current("replica_id_in_sync_group")
        return self._replica_id if self._peers is None else self._peers.replica_id

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas run in step."""
        self._require_current("num_replicas_in_sync")
        return self._strategy.num_replicas_in_sync

    @property
    def devices(self) -> tuple[str, ...]:
        """The device this replica runs on; compiled, the devices of all replicas."""
        self._require_current("devices")
        devices = self._strategy.extended.worker_devices
        replica_id = self.replica_id_in_sync_group
        if not isinstance(replica_id, int):
            return devices
        return (devices[self._strategy.extended.mesh.local_index(replica_id)],)

    def merge_call(
        self,
        merge_fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Stops all replicas and runs ``merge_fn(strategy, *args, **kwargs)`` once.

        Each argument arrives as a `PerReplica` of what the replicas passed, or as
        the bare object where all passed the same. The result is unwrapped again
        for each replica.

        Args:
            merge_fn: Called once, in cross-replica context.
            args: Its arguments after the strategy.
            kwargs: The same by keyword.

        Returns:
            The result of `merge_fn`. Each replica gets its own component of it.

        Raises:
            ContextError: Outside of the replica function.

        Example:
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
            >>> def merge_fn(strategy, value):
            ...     return strategy.reduce("SUM", value, axis=None)
            >>> def replica_fn():
            ...     ctx = rx.get_replica_context()
            ...     return ctx.merge_call(merge_fn, args=(ctx.replica_id_in_sync_group,))
            >>> int(strategy.run(replica_fn))
            1
        """
        return self._active("merge_call").merge(merge_fn, tuple(args), dict(kwargs or {}))

    def _together(
        self,
        label: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        own: Any = None,
        alone: Callable[[], Any] | None = None,
    ) -> Any:
        """Runs ``fn(*args)`` once for all replicas; for the library.

        Args:
            label: What it is, for errors.
            fn: The function. Whatever it brings along must be the same on all replicas.
            args: Its arguments, merged as those of `merge_call` are.
            own: A function that may bring arrays and numbers of the replica's own. Those that
                differ are the first argument of `fn`, by their path in
                ``engine.eager.captured.captured_by(own)``.
            alone: What an eager replica does by itself where the others do not make this call.
                Without it, that is an error.
        """
        return self._active(label).together(label, fn, args, own=own, alone=alone)

    def all_reduce(self, reduce_op: ReduceOpLike, value: Any, options: Any = None) -> Any:
        """`value` (a nest) combined over all replicas; every replica gets the result.

        Its gradient is the all_reduce of the gradient.

        Args:
            reduce_op: ``ReduceOp.SUM`` or ``ReduceOp.MEAN``, or its name.
            value: A nest of arrays and numbers, of the same structure and
                shapes on every replica.
            options: A `CommunicationOptions`. Its ``bytes_per_pack`` says how a compiled
                run packs the leaves.

        Returns:
            The combined value, in the nest of `value`.

        Raises:
            ReductionError: If `reduce_op` is neither.
            ContextError: Outside of the replica function.
        """
        op = ReduceOp.parse(reduce_op)
        bytes_per_pack_of(options)  # refuses what is no options, in every executor
        return self._active("all_reduce").all_reduce(op, value, options)

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """The `value` (a nest) of every replica, concatenated along `axis`, on every replica.

        Args:
            value: A nest of arrays; sizes along `axis` may differ.
            axis: The dim to concatenate along.
            options: Hints for the collective.

        Returns:
            The concatenated arrays, in the nest of `value`.

        Raises:
            ContextError: Outside of the replica function.
        """
        bytes_per_pack_of(options)  # checked only: one collective per leaf, nothing to pack
        return self._active("all_gather").all_gather(value, axis)

    def _require_current(self, use: str) -> None:
        if self._ended:
            raise ContextError(
                f"ReplicaContext.{use} was used after its run had ended. Call "
                "replicax.get_replica_context() anew inside the function passed to run."
            )

    def _is_in_force(self) -> bool:
        stack.keep_place()
        entry = stack.top()
        if entry is None:
            return self._is_ambient
        return entry.replica_context is self

    def _active(self, use: str) -> Peers:
        self._require_current(use)
        if not self._is_in_force():
            raise ContextError(
                f"ReplicaContext.{use} was called inside {stack.describe()}, where this context is "
                "not in force. Call it in the replica function itself, on its own thread."
            )
        if self._peers is None:
            raise ContextError(
                f"ReplicaContext.{use} needs a running replica; this context was made by hand. Use "
                "replicax.get_replica_context() inside the function passed to run."
            )
        return self._peers
