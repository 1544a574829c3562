"""The replica context: what a replica function may ask and do.

How replicas talk to each other depends on the executor; that is behind `Peers`
(eager threads in `context.eager_peers`, one traced program in
`context.traced_peers`, a single replica in `context.solo`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from replicax.context import stack
from replicax.core import nest
from replicax.core.enums import ReduceOp
from replicax.core.errors import ContextError
from replicax.core.options import bytes_per_pack_of


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

    def together(self, label: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Like `merge` with ``fn(*args)``, for the library's own use."""
        ...

    def all_reduce(self, op: ReduceOp, leaves: list[Any], options: Any) -> list[Any]:
        """Each leaf combined over all replicas."""
        ...

    def all_gather(self, leaf: Any, axis: int) -> Any:
        """The leaf of every replica, concatenated along `axis`."""
        ...


class ReplicaContext:
    """One replica's view of a ``Strategy.run``.

    Obtained inside the replica function with ``get_replica_context()``; it is
    valid only there.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> def replica_fn():
        ...     ctx = rx.get_replica_context()
        ...     return ctx.all_reduce(rx.ReduceOp.SUM, ctx.replica_id_in_sync_group + 1.0)
        >>> strategy.run(replica_fn).numpy()
        array(3., dtype=float32)
    """

    def __init__(self, strategy: Any, replica_id_in_sync_group: Any) -> None:
        """A context that describes a replica; only ``run`` makes one that can act."""
        self._strategy = strategy
        self._replica_id = replica_id_in_sync_group
        self._peers: Peers | None = None
        self._ended = False

    @classmethod
    def of(cls, strategy: Any, peers: Peers) -> ReplicaContext:
        """The context of a running replica."""
        context = cls(strategy, None)
        context._peers = peers
        return context

    def end(self) -> None:
        """Makes every later use an error: the run is over."""
        self._ended = True

    def __repr__(self) -> str:
        state = (
            "ended"
            if self._ended
            else f"replica {self._replica_id if self._peers is None else self._peers.replica_id}"
        )
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

    def together(self, label: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Runs ``fn(*args)`` once for all replicas; for the library, `label` goes into errors."""
        return self._active(label).together(label, fn, args)

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """`value` (a nest) combined over all replicas; every replica gets the result.

        Its gradient is the all_reduce of the gradient.

        Args:
            reduce_op: ``ReduceOp.SUM`` or ``ReduceOp.MEAN``, or its name.
            value: A nest of arrays and numbers, of the same structure and
                shapes on every replica.
            options: A `CommunicationOptions`. Its ``bytes_per_pack`` says how a compiled
                run packs the leaves.
        """
        op = ReduceOp.parse(reduce_op)
        bytes_per_pack_of(options)  # refuses what is no options, in every executor
        peers = self._active("all_reduce")
        leaves, structure = nest.flatten(value)
        return nest.unflatten(structure, peers.all_reduce(op, leaves, options))

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """The `value` (a nest) of every replica, concatenated along `axis`, on every replica.

        Args:
            value: A nest of arrays; sizes along `axis` may differ.
            axis: The dim to concatenate along.
            options: Hints for the collective.
        """
        bytes_per_pack_of(options)  # checked only: one collective per leaf, nothing to pack
        peers = self._active("all_gather")
        return nest.map_leaves(lambda leaf: peers.all_gather(leaf, axis), value)

    def _require_current(self, use: str) -> None:
        if self._ended:
            raise ContextError(
                f"ReplicaContext.{use} was used after its run had ended. Call "
                "replicax.get_replica_context() anew inside the function passed to run."
            )

    def _active(self, use: str) -> Peers:
        self._require_current(use)
        if stack.get_replica_context() is not self:
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
