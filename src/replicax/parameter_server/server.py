"""What a parameter server does: holds shards, keeps updates until they are decided, applies them.

Pure in that it knows no process and no network; a transport decides where it lives. One lock
orders everything. Programs that update a shard donate its buffer, unless a reader was given it.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.parameter_server.messages import (
    Array,
    Attempt,
    OptimizerSpec,
    ReadReply,
    RowsReply,
    ServerSnapshot,
    ShardSpec,
    Update,
    UpdateKind,
)
from replicax.parameter_server.server_optimizer import ServerOptimizer
from replicax.parameter_server.transport import FencedError, ServerGoneError

REMEMBERED = 65536
"""How many closures a server knows the fate of; far more than can be on their way."""

_VERSIONS_OF_EPOCH = 1 << 32  # a shard does not change so often


@dataclasses.dataclass(slots=True)
class HeldShard:
    """One shard and its value.

    Attributes:
        spec: What it is.
        value: Its value.
        version: How often it has been changed.
        is_shared: Whether somebody outside may hold the buffer.
    """

    spec: ShardSpec
    value: jax.Array
    version: int = 0
    is_shared: bool = False

    def replace(self, value: jax.Array, *, is_shared: bool = False) -> None:
        """Makes `value` the value."""
        self.value, self.is_shared = value, is_shared
        self.version += 1


class ServerState:
    """Implements `transport.Server`; for what the methods do see there.

    Example:
        >>> server = ServerState()
        >>> server.create([ShardSpec(0, 0, "v", (2,), "float32")], [np.zeros(2, np.float32)])
        >>> attempt = Attempt(epoch=0, closure=7)
        >>> server.stage(attempt, [Update(UpdateKind.ADD, 0, np.ones(2, np.float32))])
        >>> server.commit(attempt), server.commit(attempt)
        (0, 1)
        >>> server.read([0], [-1]).values
        (Array([1., 1.], dtype=float32),)
    """

    def __init__(self, *, replaces: int | None = None) -> None:
        """A server without shards.

        Args:
            replaces: The number of the server that was lost, and in whose place this one is: it
                knows nothing, and says so, until `restore`.
        """
        self._replaces = replaces
        self._lock = threading.RLock()
        self._shards: dict[int, HeldShard] = {}
        self._optimizers: dict[int, ServerOptimizer] = {}
        self._staged: dict[int, tuple[Attempt, list[Update]]] = {}
        self._committed: collections.OrderedDict[int, int] = collections.OrderedDict()
        self._fences: collections.OrderedDict[int, int] = collections.OrderedDict()
        self._clock = 0
        self._epoch = 0

    # -- shards ------------------------------------------------------------------------------

    def create(self, specs: Sequence[ShardSpec], values: Sequence[Array]) -> None:
        """See `transport.Server.create`."""
        with self._lock:
            self._require_restored()
            for spec, value in zip(specs, values, strict=True):
                held = self._shards.get(spec.shard_id)
                if held is None:
                    self._shards[spec.shard_id] = self._new_shard(spec, value)
                else:
                    held.replace(_own(value, spec.dtype))

    def drop(self, shard_ids: Sequence[int]) -> None:
        """See `transport.Server.drop`."""
        with self._lock:
            for shard_id in shard_ids:
                self._shards.pop(shard_id, None)

    def register_optimizer(self, spec: OptimizerSpec) -> None:
        """See `transport.Server.register_optimizer`."""
        with self._lock:
            self._optimizers[spec.optimizer_id] = ServerOptimizer(spec)

    def read(self, shard_ids: Sequence[int], known_versions: Sequence[int]) -> ReadReply:
        """See `transport.Server.read`."""
        with self._lock:
            self._require_restored()
            versions, values = [], []
            for shard_id, known in zip(shard_ids, known_versions, strict=True):
                held = self._shards[shard_id]
                versions.append(held.version)
                values.append(None if held.version == known else held.value)
                held.is_shared |= held.version != known
            return ReadReply(self._clock, tuple(versions), tuple(values))

    def gather(self, shard_id: int, rows: Array) -> RowsReply:
        """See `transport.Server.gather`."""
        with self._lock:
            self._require_restored()
            values = _taken(self._shards[shard_id].value, rows)
            values.block_until_ready()  # before an update may donate the shard
            return RowsReply(self._clock, values)

    # -- updates -----------------------------------------------------------------------------

    def stage(self, attempt: Attempt, updates: Sequence[Update]) -> None:
        """See `transport.Server.stage`."""
        with self._lock:
            self._refuse_fenced(attempt)
            if attempt.closure in self._committed:
                raise _fenced(attempt, "it is committed")
            known, staged = self._staged.get(attempt.closure, (attempt, []))
            if known != attempt:
                staged = []
            self._staged[attempt.closure] = attempt, [*staged, *updates]

    def commit(self, attempt: Attempt) -> int:
        """See `transport.Server.commit`."""
        with self._lock:
            number = self._committed.get(attempt.closure)
            if number == attempt.number and attempt.epoch == self._epoch:
                return self._clock
            self._refuse_fenced(attempt)
            if number is not None:
                raise _fenced(attempt, f"attempt {number} is committed")
            known, updates = self._staged.get(attempt.closure, (None, []))
            if known != attempt:
                raise _fenced(attempt, "it has staged nothing")
            self._apply(updates)
            del self._staged[attempt.closure]
            _remember(self._committed, attempt.closure, attempt.number)
            self._clock += 1
            return self._clock - 1

    def abort(self, attempt: Attempt) -> bool:
        """See `transport.Server.abort`."""
        with self._lock:
            if attempt.epoch != self._epoch:
                return True  # it was given up with its epoch
            if self._committed.get(attempt.closure) == attempt.number:
                return False
            known, _ = self._staged.get(attempt.closure, (None, []))
            if known is not None and known.number <= attempt.number:
                del self._staged[attempt.closure]
            least = max(self._fences.get(attempt.closure, 0), attempt.number + 1)
            _remember(self._fences, attempt.closure, least)
            return True

    def decided(self, closures: Sequence[int]) -> dict[int, int]:
        """See `transport.Server.decided`."""
        with self._lock:
            return {c: self._committed[c] for c in closures if c in self._committed}

    def snapshot(self) -> ServerSnapshot:
        """See `transport.Server.snapshot`."""
        with self._lock:
            self._require_restored()
            all_held = list(self._shards.values())
            for held in all_held:
                held.is_shared = True
            return ServerSnapshot(
                self._clock,
                tuple(held.spec for held in all_held),
                tuple(held.value for held in all_held),
            )

    def restore(self, snapshot: ServerSnapshot, epoch: int) -> None:
        """See `transport.Server.restore`."""
        with self._lock:
            self._clock, self._epoch, self._replaces = snapshot.clock, epoch, None
            self._shards = {
                spec.shard_id: self._new_shard(spec, value)
                for spec, value in zip(snapshot.shards, snapshot.values, strict=True)
            }
            self._staged.clear()
            self._committed.clear()
            self._fences.clear()

    def _new_shard(self, spec: ShardSpec, value: Array) -> HeldShard:
        """A shard whose versions are none that a reader knows of an earlier epoch."""
        return HeldShard(spec, _own(value, spec.dtype), version=self._epoch * _VERSIONS_OF_EPOCH)

    def _require_restored(self) -> None:
        if self._replaces is not None:
            raise ServerGoneError(
                f"server {self._replaces} was lost, and the one in its place has not been given "
                "its variables.",
                self._replaces,
            )

    def _refuse_fenced(self, attempt: Attempt) -> None:
        self._require_restored()
        if attempt.epoch != self._epoch:
            raise _fenced(attempt, f"this is epoch {self._epoch}")
        if attempt.number < self._fences.get(attempt.closure, 0):
            raise _fenced(attempt, "it was aborted")

    def _apply(self, updates: Sequence[Update]) -> None:
        """Applies the updates of one attempt in their order; an optimizer's at its first one."""
        by_optimizer: dict[int, list[Update]] = {}
        for update in updates:
            if update.optimizer_id is not None:
                by_optimizer.setdefault(update.optimizer_id, []).append(update)
        changed: list[HeldShard] = []
        for update in updates:
            if update.optimizer_id is None:
                held = self._shards[update.shard_id]
                _change(held, update)
                changed.append(held)
            elif (gradients := by_optimizer.pop(update.optimizer_id, None)) is not None:
                optimizer = self._optimizers[update.optimizer_id]
                changed += optimizer.update(self._shards, gradients)
        # What a reader gets next is there, and does not make it wait for an update.
        jax.block_until_ready([held.value for held in changed])


def _fenced(attempt: Attempt, reason: str) -> FencedError:
    return FencedError(
        f"attempt {attempt.number} at closure {attempt.closure} (epoch {attempt.epoch}) is over: "
        f"{reason}. What it computed is dropped."
    )


def _remember(known: collections.OrderedDict[int, int], closure: int, number: int) -> None:
    known[closure] = number
    while len(known) > REMEMBERED:
        known.popitem(last=False)


def _own(value: Array, dtype: str) -> jax.Array:
    """A copy of `value` that nobody else holds."""
    return jnp.array(np.asarray(value), dtype=jnp.dtype(dtype), copy=True)


def _change(held: HeldShard, update: Update) -> None:
    value = update.value
    if update.kind is UpdateKind.ASSIGN:
        is_array = isinstance(value, jax.Array)
        own = value if is_array else _own(value, held.spec.dtype)
        held.replace(jnp.asarray(own, held.value.dtype), is_shared=is_array)
        return
    change = _CHANGES[update.kind, held.is_shared]
    if update.kind is UpdateKind.ADD:
        held.replace(change(held.value, value))
    else:
        held.replace(change(held.value, update.rows, value))


def _sum(old: jax.Array, delta: jax.Array) -> jax.Array:
    return (old + delta).astype(old.dtype)


def _with_rows_added(old: jax.Array, rows: jax.Array, values: jax.Array) -> jax.Array:
    return old.at[rows].add(values.astype(old.dtype), mode="drop")


def _with_rows_set(old: jax.Array, rows: jax.Array, values: jax.Array) -> jax.Array:
    return old.at[rows].set(values.astype(old.dtype), mode="drop")


_CHANGES: dict[tuple[UpdateKind, bool], Any] = {
    (kind, is_shared): jax.jit(change, donate_argnums=() if is_shared else (0,))
    for kind, change in (
        (UpdateKind.ADD, _sum),
        (UpdateKind.ADD_ROWS, _with_rows_added),
        (UpdateKind.ASSIGN_ROWS, _with_rows_set),
    )
    for is_shared in (False, True)
}


@jax.jit
def _taken(value: jax.Array, rows: jax.Array) -> jax.Array:
    return value.at[rows].get(mode="fill", fill_value=0)
