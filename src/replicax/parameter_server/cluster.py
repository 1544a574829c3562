"""The servers as one place for variables: which server has what, reads and assignments from here.

Knows shards and a transport, and nothing of variables but their storage. Assignments of the
coordinator are attempts as those of closures, so that a server has one way to change.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import jax.numpy as jnp
import numpy as np

from replicax.core.errors import VariableError
from replicax.jax_internals.arrays import uncommitted
from replicax.parameter_server.messages import (
    NEW,
    Attempt,
    Emission,
    OptimizerSpec,
    ShardSpec,
    Update,
    UpdateKind,
)
from replicax.parameter_server.storage import ServerStorage
from replicax.parameter_server.transport import Transport
from replicax.parameter_server.worker import joined, padded, rows_by_shard, updates_of

if TYPE_CHECKING:
    from replicax.parameter_server.rollback import Change, Rollback

T = TypeVar("T")

Partition = Callable[[tuple[int, ...], Any], Sequence[int]]


@dataclasses.dataclass(frozen=True, slots=True)
class OnServers:
    """Where state is that belongs to no single variable: a copy on each of these servers."""

    servers: tuple[int, ...]


class ServerCluster:
    """All servers of one strategy.

    Attributes:
        transport: How they are reached.
        epoch: Which attempts count; another one, that is larger, after each rollback.
        rollback: Who rolls them back; None where a lost server is an error.
    """

    def __init__(self, transport: Transport, partitioner: Partition | None) -> None:
        """Servers without variables; `partitioner` cuts new ones."""
        self.transport = transport
        self.epoch = 0
        self.rollback: Rollback | None = None
        self._partitioner = partitioner
        self._bytes = [0] * len(transport.servers)
        self._shard_ids = itertools.count()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._optimizers: list[tuple[int, OptimizerSpec]] = []
        self._dropped: collections.deque[tuple[ShardSpec, ...]] = collections.deque()

    @property
    def num_servers(self) -> int:
        """How many servers there are."""
        return len(self.transport.servers)

    def new_number(self) -> int:
        """A number for a closure, an optimizer, a program or a dataset."""
        return next(self._numbers)

    # -- where variables are -----------------------------------------------------------------

    def storage(
        self, primary: Any, name: str, shape: tuple[int, ...], dtype: Any, **options: Any
    ) -> ServerStorage:
        """Storage for a new variable, with its place.

        Args:
            primary: The variable that it belongs to, the servers that have a copy each, or None.
            name: Its name.
            shape: Its shape.
            dtype: Its dtype.
            **options: What is left of the options of `Storage`.
        """
        storage = ServerStorage(self, name, shape, dtype, **options)
        own = getattr(primary, "_storage", None)
        if isinstance(primary, OnServers):
            storage.is_copied = True
            storage.places = [(server, 0) for server in primary.servers]
        elif isinstance(own, ServerStorage):
            if own.shape == shape or len(own.shards) == 1:
                storage.places = [(shard.server, shard.start) for shard in own.shards]
            else:
                storage.places = [(own.shards[0].server, 0)]
        else:
            storage.places = self._new_places(name, shape, dtype)
        return storage

    def _new_places(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype
    ) -> list[tuple[int, int]]:
        count = self._num_shards(name, shape, dtype)
        rows = shape[0] if shape else 1
        sizes = [rows // count + (index < rows % count) for index in range(count)]
        starts = itertools.accumulate(sizes, initial=0)
        row_bytes = dtype.itemsize * math.prod(shape[1:])
        places: list[tuple[int, int]] = []
        with self._lock:
            for size, start in zip(sizes, starts, strict=False):
                free = [i for i in range(self.num_servers) if i not in dict(places)]
                server = min(free, key=self._bytes.__getitem__)
                self._bytes[server] += max(size * row_bytes, 1)
                places.append((server, start))
        return places

    def _num_shards(self, name: str, shape: tuple[int, ...], dtype: Any) -> int:
        if self._partitioner is None or not shape:
            return 1
        counts = [int(count) for count in self._partitioner(shape, dtype)]
        if len(counts) != len(shape) or any(count != 1 for count in counts[1:]) or counts[0] < 1:
            raise VariableError(
                f"the variable_partitioner cuts variable {name!r} of shape {shape} into {counts}; "
                "parameter servers take rows: one number for each dim, and 1 for all but dim 0."
            )
        return min(counts[0], max(shape[0], 1), self.num_servers)

    # -- values ------------------------------------------------------------------------------

    def create(self, storage: ServerStorage, value: np.ndarray) -> None:
        """Creates the shards of a new variable, with its first value."""
        if self.rollback is None:  # which drops with the next snapshot what no closure needs again
            self.drop_now()
        places = storage.places or [(0, 0)]
        ends = [start for _, start in places[1:]] + [storage.shape[0] if storage.shape else 0]
        specs, parts = [], []
        for (server, start), end in zip(places, ends, strict=True):
            whole = storage.is_copied or len(places) == 1
            shape = storage.shape if whole else (end - start, *storage.shape[1:])
            spec = ShardSpec(
                next(self._shard_ids), server, storage.name, shape, str(storage.dtype), start
            )
            specs.append(spec)
            parts.append(self._kept(value if whole else value[start:end]))

        def create(epoch: int) -> None:
            del epoch
            for spec, part in zip(specs, parts, strict=True):
                self.transport.servers[spec.server].create([spec], [part])

        self._change(create)
        storage.shards = tuple(specs)

    def _change(self, change: Change) -> None:
        if self.rollback is None:
            change(self.epoch)
        else:
            self.rollback.change(change)

    def _look(self, read: Callable[[], T]) -> T:
        return read() if self.rollback is None else self.rollback.look(read)

    def _kept(self, value: Any) -> Any:
        """`value`, which nobody changes as long as it may be needed again."""
        return value.copy() if self.rollback and isinstance(value, np.ndarray) else value

    def value_of(self, storage: ServerStorage) -> Any:
        """The value of a variable now, uncommitted."""
        return self._look(lambda: self._value_of(storage))

    def _value_of(self, storage: ServerStorage) -> Any:
        shards = storage.shards[:1] if storage.is_copied else storage.shards
        by_server: dict[int, list[ShardSpec]] = collections.defaultdict(list)
        for shard in shards:
            by_server[shard.server].append(shard)
        values: dict[int, Any] = {}
        for server, some in by_server.items():
            ids = [shard.shard_id for shard in some]
            reply = self.transport.servers[server].read(ids, [NEW] * len(ids))
            values.update(zip(ids, reply.values, strict=True))
        return uncommitted(jnp.asarray(joined([values[shard.shard_id] for shard in shards])))

    def rows_of(self, storage: ServerStorage, rows: np.ndarray) -> Any:
        """Some rows of a variable now; `rows` are in its bounds."""
        return self._look(lambda: self._rows_of(storage, rows))

    def _rows_of(self, storage: ServerStorage, rows: np.ndarray) -> Any:
        flat = rows.reshape(-1)
        found = np.zeros((flat.size, *storage.shape[1:]), storage.dtype)
        for shard, places, own in rows_by_shard(storage.shards, flat):
            wanted = padded(own, shard.shape[0])
            reply = self.transport.servers[shard.server].gather(shard.shard_id, wanted)
            found[places] = np.asarray(reply.values)[: own.size]
        return jnp.asarray(found.reshape((*rows.shape, *storage.shape[1:])))

    def assign(self, storage: ServerStorage, value: Any) -> None:
        """Replaces the value of a variable."""
        self.update(storage, UpdateKind.ASSIGN, value)

    def update(
        self, storage: ServerStorage, kind: UpdateKind, value: Any, rows: Any = None
    ) -> None:
        """One update of one variable, on all its servers."""
        at = None if rows is None else 1
        emission = Emission(kind, storage.shards, 0, at, is_copied=storage.is_copied)
        updates: dict[int, list[Update]] = collections.defaultdict(list)
        for server, update in updates_of(emission, (self._kept(value), self._kept(rows))):
            updates[server].append(update)
        self._change(lambda epoch: self._apply(epoch, updates))

    def _apply(self, epoch: int, updates: Mapping[int, Sequence[Update]]) -> None:
        attempt = Attempt(epoch, self.new_number())
        for server, some in updates.items():
            self.transport.servers[server].stage(attempt, some)
        for server in updates:
            self.transport.servers[server].commit(attempt)

    def register_optimizer(self, server: int, spec: OptimizerSpec) -> None:
        """Tells one server of an optimizer of shards that it holds."""
        self._optimizers.append((server, spec))  # first: the server may be replaced meanwhile
        try:
            self._look(lambda: self.transport.servers[server].register_optimizer(spec))
        except BaseException:
            self._optimizers.pop()
            raise

    def optimizers_of(self, server: int) -> list[OptimizerSpec]:
        """The optimizers that one server has been told of."""
        return [spec for index, spec in self._optimizers if index == server]

    # -- the end of variables ----------------------------------------------------------------

    def drop_later(self, shards: tuple[ShardSpec, ...]) -> None:
        """Notes shards of a variable that is gone; takes no lock and sends nothing."""
        self._dropped.append(shards)

    def drop_now(self) -> None:
        """Lets the servers forget the shards of variables that are gone."""
        while self._dropped:
            shards = self._dropped[0]
            for shard in shards:
                self.transport.servers[shard.server].drop([shard.shard_id])
            self._dropped.popleft()
            with self._lock:
                for shard in shards:
                    size = jnp.dtype(shard.dtype).itemsize * math.prod(shard.shape)
                    self._bytes[shard.server] -= min(max(size, 1), self._bytes[shard.server])
