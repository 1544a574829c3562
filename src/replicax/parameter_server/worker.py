"""What a worker does: reads from the servers, runs a program, and stages what it computed.

Knows servers by the methods of `transport.Server` only, and nothing of Python functions but
`dataset_fn`: a program is StableHLO. A transport decides where the worker lives.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.core import nest
from replicax.core.errors import OutOfRangeError
from replicax.parameter_server.messages import (
    NEW,
    Array,
    ClosureCall,
    ClosureReply,
    DatasetSpec,
    Emission,
    InputSource,
    Lookup,
    OtherShapes,
    ProgramSpec,
    ShardSpec,
    StageInput,
    Update,
    UpdateKind,
)
from replicax.parameter_server.transport import Server

_current_worker: contextvars.ContextVar[int | None] = contextvars.ContextVar(
    "replicax_current_worker", default=None
)


def current_worker() -> int | None:
    """The worker whose `dataset_fn` or dataset this code is part of, or None."""
    return _current_worker.get()


@contextlib.contextmanager
def _as_worker(index: int) -> Iterator[None]:
    token = _current_worker.set(index)
    try:
        yield
    finally:
        _current_worker.reset(token)


@dataclasses.dataclass(slots=True)
class LoadedProgram:
    """A program, and how this worker runs its stages.

    Attributes:
        spec: What it is.
        stages: Each stage, compiled when it is first called.
    """

    spec: ProgramSpec
    stages: tuple[Callable[..., Any], ...]


class WorkerDataset:
    """A dataset of one worker; its first element is looked at, and still given."""

    def __init__(self, dataset: Any) -> None:
        """Looks at the first element of `dataset`."""
        self._dataset = dataset
        self._first: Iterator[Any] | None = iter(dataset)
        try:
            self._peeked = next(self._first)
        except StopIteration:
            raise OutOfRangeError(
                "the dataset of a worker is empty, so that nobody knows what its elements look "
                "like. Give every worker at least one element."
            ) from None
        leaves, structure = nest.flatten(self._peeked)
        arrays = [np.asarray(leaf) for leaf in leaves]
        self.spec = DatasetSpec(
            nest.unflatten(structure, range(len(leaves))),
            tuple(array.shape for array in arrays),
            tuple(str(jax.dtypes.canonicalize_dtype(array.dtype)) for array in arrays),
        )

    def __iter__(self) -> Iterator[Any]:
        """A pass over it."""
        if self._first is None:
            return iter(self._dataset)
        first, self._first = self._first, None
        return self._with_peeked(first)

    def _with_peeked(self, rest: Iterator[Any]) -> Iterator[Any]:
        yield self._peeked
        yield from rest


class WorkerState:
    """Implements `transport.Worker`; for what the methods do see there.

    Args:
        index: Its number among the workers.
        servers: The servers, by number.
    """

    def __init__(self, index: int, servers: Sequence[Server]) -> None:
        self._index = index
        self._servers = servers
        self._programs: dict[int, LoadedProgram] = {}
        self._datasets: dict[int, WorkerDataset] = {}
        self._iterators: dict[int, Iterator[Any]] = {}
        self._pulled: dict[int, dict[tuple[int, int], list[Any]]] = {}  # by closure
        self._cache: dict[int, tuple[int, Array]] = {}  # the version and value of a shard
        self._lock = threading.Lock()

    def register_program(self, spec: ProgramSpec) -> None:
        """See `transport.Worker.register_program`."""
        stages = tuple(jax.jit(stage.exported.call) for stage in spec.stages)
        with self._lock:
            self._programs[spec.program_id] = LoadedProgram(spec, stages)

    def make_dataset(self, dataset_id: int, dataset_fn: Callable[[], Any]) -> DatasetSpec:
        """See `transport.Worker.make_dataset`."""
        with _as_worker(self._index):
            dataset = WorkerDataset(dataset_fn())
        with self._lock:
            self._datasets[dataset_id] = dataset
        return dataset.spec

    def make_iterator(self, iterator_id: int, dataset_id: int) -> None:
        """See `transport.Worker.make_iterator`."""
        with self._lock:
            dataset = self._datasets[dataset_id]
        with _as_worker(self._index):
            self._iterators[iterator_id] = iter(dataset)

    def run(self, call: ClosureCall) -> ClosureReply | OtherShapes:
        """See `transport.Worker.run`."""
        with self._lock:
            program = self._programs[call.program_id]
        spec = program.spec
        elements = self._elements(spec, call.attempt.closure)
        shapes = tuple(
            dataclasses.replace(element, shape=value.shape, dtype=str(value.dtype))
            for element, value in zip(spec.elements, elements, strict=True)
        )
        if shapes != spec.elements:
            return OtherShapes(shapes)
        self._pulled.pop(call.attempt.closure, None)
        clocks: dict[int, int] = {}
        variables = self._read(spec.reads, clocks)
        rows: list[Any] = [None] * len(spec.lookups)

        def value_of(source: StageInput) -> Any:
            match source.source:
                case InputSource.ARGUMENT:
                    return call.arguments[source.index]
                case InputSource.ELEMENT:
                    return elements[source.index]
                case InputSource.VARIABLE:
                    return variables[source.index]
                case InputSource.ROWS:
                    return rows[source.index]
                case InputSource.WORKER:
                    return np.int32(self._index)

        outputs: Sequence[Any] = ()
        for number, (stage, run) in enumerate(zip(spec.stages, program.stages, strict=True)):
            outputs = run(*map(value_of, stage.inputs))
            for place, lookup in enumerate(spec.lookups):
                if lookup.stage == number:
                    rows[place] = self._gathered(lookup, outputs[lookup.output], clocks)
        # An unfinished gradient would make the server, and all its readers, wait for this worker.
        jax.block_until_ready(outputs)
        updates: dict[int, list[Update]] = collections.defaultdict(list)
        for emission in spec.emissions:
            for server, update in updates_of(emission, outputs):
                updates[server].append(update)
        for server, some in updates.items():
            self._servers[server].stage(call.attempt, some)
        return ClosureReply(tuple(outputs[: spec.num_results]), clocks, tuple(updates))

    def _elements(self, spec: ProgramSpec, closure: int) -> list[np.ndarray]:
        """The leaves of elements that the program needs; pulled once for a closure."""
        if not spec.elements:
            return []
        pulled = self._pulled.setdefault(closure, {})
        wanted = sorted({(element.iterator_id, element.turn) for element in spec.elements})
        with _as_worker(self._index):
            for iterator_id, turn in wanted:
                if (iterator_id, turn) in pulled:
                    continue
                try:
                    element = next(self._iterators[iterator_id])
                except StopIteration:
                    del self._pulled[closure]
                    raise OutOfRangeError(
                        f"the dataset of worker {self._index} has ended in {spec.name!r}. "
                        "Schedule as many closures as there is data, repeat the dataset, or make "
                        "a new iterator for every epoch."
                    ) from None
                pulled[iterator_id, turn] = [_as_host(leaf) for leaf in nest.flatten(element)[0]]
        return [pulled[e.iterator_id, e.turn][e.leaf] for e in spec.elements]

    def _read(self, reads: Sequence[tuple[ShardSpec, ...]], clocks: dict[int, int]) -> list[Array]:
        """The value of each variable; every server is asked once, for what has changed."""
        by_server: dict[int, list[int]] = collections.defaultdict(list)
        for shards in reads:
            for shard in shards:
                by_server[shard.server].append(shard.shard_id)
        for server, ids in by_server.items():
            known = [self._cache[i][0] if i in self._cache else NEW for i in ids]
            reply = self._servers[server].read(ids, known)
            clocks.setdefault(server, reply.clock)
            for shard_id, version, value in zip(ids, reply.versions, reply.values, strict=True):
                if value is not None:
                    self._cache[shard_id] = version, value
        return [joined([self._cache[s.shard_id][1] for s in shards]) for shards in reads]

    def _gathered(self, lookup: Lookup, rows: Any, clocks: dict[int, int]) -> np.ndarray:
        wanted = np.asarray(rows)
        flat = wanted.reshape(-1)
        width, dtype = lookup.shards[0].shape[1:], jnp.dtype(lookup.shards[0].dtype)
        found = np.zeros((flat.size, *width), dtype)
        for shard, places, own in rows_by_shard(lookup.shards, flat):
            reply = self._servers[shard.server].gather(shard.shard_id, padded(own, shard.shape[0]))
            clocks.setdefault(shard.server, reply.clock)
            found[places] = np.asarray(reply.values)[: own.size]
        return found.reshape((*wanted.shape, *width))


def _as_host(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def joined(values: Sequence[Array]) -> Array:
    """The value of a variable, of its shards."""
    return values[0] if len(values) == 1 else jnp.concatenate(list(map(jnp.asarray, values)))


def rows_by_shard(
    shards: Sequence[ShardSpec], rows: np.ndarray
) -> Iterator[tuple[ShardSpec, np.ndarray, np.ndarray]]:
    """Which shard has which of the rows.

    Returns:
        For each shard that has some: the places in `rows`, and the rows as the shard counts them.

    Example:
        >>> first = ShardSpec(0, 0, "table", (2, 1), "float32")
        >>> second = ShardSpec(1, 1, "table", (2, 1), "float32", start=2)
        >>> for shard, places, own in rows_by_shard([first, second], np.array([3, 0])):
        ...     print(shard.shard_id, places, own)
        0 [1] [0]
        1 [0] [1]
    """
    for shard in shards:
        places = np.flatnonzero((rows >= shard.start) & (rows < shard.start + shard.shape[0]))
        if places.size:
            yield shard, places, (rows[places] - shard.start).astype(np.int32)


def padded(rows: np.ndarray, filling: int) -> np.ndarray:
    """`rows`, filled up to one of few sizes, so that few programs are compiled.

    Example:
        >>> padded(np.array([4, 5, 6], np.int32), 9)
        array([4, 5, 6, 9], dtype=int32)
    """
    size = 1 << max(rows.size - 1, 0).bit_length()
    return np.pad(rows, (0, size - rows.size), constant_values=filling)


def updates_of(emission: Emission, outputs: Sequence[Any]) -> Iterator[tuple[int, Update]]:
    """The updates of shards that one emission of a program means, each with its server."""
    value, kind, optimizer = outputs[emission.output], emission.kind, emission.optimizer_id
    if emission.rows is not None:
        rows = np.asarray(outputs[emission.rows]).reshape(-1)
        if len(emission.shards) == 1:  # no need to look at them
            shard = emission.shards[0]
            values = value.reshape((rows.size, *shard.shape[1:]))
            yield shard.server, Update(kind, shard.shard_id, values, rows, optimizer)
            return
        values = np.asarray(value).reshape((rows.size, *emission.shards[0].shape[1:]))
        found = {s.shard_id: (p, own) for s, p, own in rows_by_shard(emission.shards, rows)}
        nothing = np.zeros(0, np.int64), np.zeros(0, np.int32)
        for shard in emission.shards:
            places, own = found.get(shard.shard_id, nothing)
            if not own.size and kind is not UpdateKind.ROW_GRADIENT:
                continue  # an optimizer counts its updates on all servers
            filled = padded(own, shard.shape[0])
            some = np.zeros((filled.size, *shard.shape[1:]), values.dtype)
            some[: own.size] = values[places]
            yield shard.server, Update(kind, shard.shard_id, some, filled, optimizer)
        return
    for shard in emission.shards:
        is_whole = emission.is_copied or len(emission.shards) == 1
        part = value if is_whole else value[shard.start : shard.start + shard.shape[0]]
        yield shard.server, Update(kind, shard.shard_id, part, None, optimizer)
