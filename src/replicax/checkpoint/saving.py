"""Writes one checkpoint, at once or in the background.

What is saved are the values at the moment of the call: arrays over devices are handed
out, so that no later step takes their buffers, and are copied to the host before the
call returns.
"""

from __future__ import annotations

import concurrent.futures.thread  # its own work at exit must be registered before ours
import contextlib
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any, NoReturn

import jax

from replicax.backend.runahead import RUN_AHEAD
from replicax.checkpoint import files
from replicax.checkpoint.arrays import write_arrays
from replicax.checkpoint.encoding import array_names, inlined
from replicax.checkpoint.entries import GROUPS, STATES, Entry, Record, StateEntry, VariableEntry
from replicax.checkpoint.errors import reported_as_unwritten
from replicax.checkpoint.latest import Commit
from replicax.checkpoint.parts import Parts
from replicax.checkpoint.team import BACKGROUND, MAIN, Team, current_team
from replicax.core.errors import ContextError, WorkersDifferError
from replicax.engine.contexts import stack
from replicax.engine.trace.frame import current_frame
from replicax.jax_internals.arrays import one_device_arrays
from replicax.jax_internals.traces import is_staging

Note = Callable[[Commit], None]
"""Calls its argument, which makes the checkpoint complete, and notes that it is."""

TELL_SECONDS = 30.0
"""How often the first worker tells the others that it is still writing."""


def require_host_code(call: str) -> None:
    """Raises where values are not there yet, or are one replica's.

    Raises:
        ContextError: In a replica, or while a program is traced.
    """
    if current_frame() is not None or is_staging():
        raise ContextError(
            f"{call} was called inside a function that is being compiled, where values do not "
            "exist yet. Call it between the steps."
        )
    if stack.has_strategy() and not stack.in_cross_replica_context():
        raise ContextError(
            f"{call} was called inside {stack.describe()}; a checkpoint is of all replicas. Call "
            "it outside run."
        )


_ONE_PATH = (
    "Pass the same path on every worker, also where only the first one is said to save: it alone "
    "writes, and the others need no folder of their own."
)


def _raise_difference(team: Team, outline: list[str]) -> NoReturn:
    """Says in what the workers differ, after it has been seen that they do."""
    outlines = team.settle("the objects of a checkpoint", message=outline)
    rank = next(rank for rank, other in enumerate(outlines) if other != outlines[0])
    pairs = itertools.zip_longest(outlines[0], outlines[rank], fillvalue="nothing")
    first, other = next(pair for pair in pairs if pair[0] != pair[1])
    raise WorkersDifferError(
        f"the workers would save different things: {first} on {team.names[0]}, {other} on "
        f"{team.names[rank]}. Give the Checkpoint the same objects on every worker."
    )


class Snapshot:
    """The values of all entries at one moment.

    Attributes:
        records: What the manifest says of each, by key.
        aliases: For a thing with several keys, from the later ones to the first.
        arrays: The arrays, by group and name; zero-sized ones are left out.
        own_states: The states that only this worker has, by key.
    """

    def __init__(self, entries: Mapping[str, Entry], team: Team) -> None:
        """Takes what is in this process; `take_variables` follows."""
        self.records: dict[str, Record] = {}
        self.aliases: dict[str, str] = {}
        self.arrays: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
        self.own_states: dict[str, Any] = {}
        self._team = team
        self._variables: dict[str, VariableEntry] = {}
        first: dict[int, str] = {}
        for key, entry in entries.items():
            known = first.setdefault(entry.identity, key)
            if known != key:
                self.aliases[key] = known
            elif isinstance(entry, VariableEntry):
                self._variables[key] = entry
            else:
                self.records[key] = entry.save(key, self.arrays)

    def outline(self) -> list[str]:
        """What there is, in words; the same on all workers."""
        variables = [f"{key}: {entry.described()}" for key, entry in self._variables.items()]
        others = [f"{key}: {record['kind']}" for key, record in self.records.items()]
        return variables + others + [f"{key}: as {known}" for key, known in self.aliases.items()]

    def states(self) -> dict[str, str]:
        """A checksum of every state, by key."""
        return {key: files.crc_of(self._inlined(key)) for key in self._state_keys()}

    def _state_keys(self) -> list[str]:
        return [key for key, record in self.records.items() if record["kind"] == StateEntry.kind]

    def _inlined(self, key: str) -> Any:
        return inlined(self.records[key]["state"], self.arrays[STATES])

    def take_variables(self, differing: Set[str]) -> None:
        """Takes the values of variables; every worker must.

        Args:
            differing: The keys of states that are not the same on all workers.
        """
        for key in differing:
            self.own_states[key] = self._inlined(key)
            for name, _, _ in array_names(self.records[key]["state"]):
                del self.arrays[STATES][name]
            self.records[key] = {"kind": StateEntry.kind, "workers": self._team.num_workers}
        for key, entry in self._variables.items():
            self.records[key] = entry.save(key, self.arrays)
        if not self._team.is_chief:
            self.arrays = {}
        self.arrays = jax.device_get(
            {
                group: {name: _one_of(array) for name, array in named.items() if array.size}
                for group, named in self.arrays.items()
            }
        )

    def manifest(self) -> dict[str, Any]:
        """What the manifest says of the values."""
        return {"records": self.records, "aliases": self.aliases}


def _one_of(array: Any) -> Any:
    """One of several equal copies.

    What is written is on the host: with arrays over several devices TensorStore keeps some 20 kB
    for each save, for good.
    """
    if isinstance(array, jax.Array) and array.is_fully_replicated:
        return one_device_arrays(array)[0]
    return array


class Writing:
    """One checkpoint on its way to the disk.

    In a cluster all workers make one together. The first worker writes: until it does, each
    has told the others that it is there and can see the folder, and has given what only it
    has. From then on a worker that is lost takes nothing of the checkpoint with it.
    """

    def __init__(
        self,
        path: Path,
        find: Callable[[], Mapping[str, Entry]],
        note: Note,
        beside: Mapping[str, bytes] | None = None,
    ) -> None:
        """Begins; returns when the values have been copied from the devices.

        Args:
            path: Where the checkpoint will be.
            find: Gives what is in it, or raises.
            note: Called when all is written, and lets it be complete.
            beside: Files of the caller's own, by name, which are part of it.

        Raises:
            CheckpointWriteError: If the files cannot be written.
            WorkersDifferError: If the workers do not save the same.
            WorkerLostError: If a worker has gone.
        """
        self._path = path
        self._note = note
        self._beside = beside or {}
        self._parts: Parts | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._finish_arrays: Callable[[], None] | None = None
        self._team = current_team()
        try:
            with RUN_AHEAD.lock:  # between two steps of whatever thread makes them
                self._manifest = self._begin(find)
        except BaseException:
            self._abandon()
            raise

    def _begin(self, find: Callable[[], Mapping[str, Entry]]) -> dict[str, Any]:
        team, path = self._team, self._path
        snapshot, error = None, None
        try:
            snapshot = Snapshot(find(), team)
            if team.is_chief:
                with reported_as_unwritten(path):
                    self._parts = Parts.begin(path)
        except Exception as problem:
            error = problem
        if team.is_alone and error is not None:
            raise error
        parts, differing = self._agree(snapshot, error)
        assert snapshot is not None
        try:
            snapshot.take_variables(differing)
            arrays = {group: named for group, named in snapshot.arrays.items() if named}
            with reported_as_unwritten(path):
                if snapshot.own_states:
                    parts.write_states(team.rank, snapshot.own_states)
                if team.is_chief:
                    parts.write_files(self._beside)
                if team.is_chief and arrays:
                    self._finish_arrays = write_arrays(parts.data / files.ARRAYS, arrays)
        except Exception as problem:
            error = problem
        team.settle("the values of a checkpoint", error)
        return snapshot.manifest()

    def _agree(
        self, snapshot: Snapshot | None, error: Exception | None
    ) -> tuple[Parts, frozenset[str]]:
        """Compares what the workers are about to save; none waits for another after that.

        Returns:
            The parts that the first worker has begun, and the keys of the states that are not
            the same on all workers.
        """
        team = self._team
        if team.is_alone:
            assert self._parts is not None
            return self._parts, frozenset()
        message = None
        if snapshot is not None:
            name = "" if self._parts is None else self._parts.name
            message = [str(self._path), name, files.crc_of(snapshot.outline()), snapshot.states()]
        answers = team.settle("the beginning of a save of a checkpoint", error, message=message)
        assert snapshot is not None
        paths, names, outlines, states = zip(*answers, strict=True)
        team.require_same("the path of a checkpoint", list(paths), _ONE_PATH)
        if len(set(outlines)) > 1:
            _raise_difference(team, snapshot.outline())
        parts = Parts(self._path, names[0]) if self._parts is None else self._parts
        try:
            parts.require_begun()
        except Exception as problem:
            error = problem
        team.settle("the folder of a checkpoint", error)
        return parts, frozenset(
            key for key in states[0] if any(other[key] != states[0][key] for other in states)
        )

    def _abandon(self) -> None:
        if self._finish_arrays is not None:
            with contextlib.suppress(Exception):
                self._finish_arrays()
        if self._parts is not None:
            self._parts.abandon()

    def finish(self, channel: str = MAIN) -> None:
        """Waits until all is written, and makes it a checkpoint.

        However long that takes: the first worker tells the others that it is still at it.
        """
        if self._team.is_alone:
            self._commit()
            return
        problems: list[Exception] = []
        thread = None
        if self._team.is_chief:
            thread = threading.Thread(target=self._try_to_commit, args=(problems,))
            thread.start()
        try:
            is_done = False
            while not is_done:
                if thread is not None:
                    thread.join(TELL_SECONDS)
                is_writing = thread is not None and thread.is_alive()
                error = problems[0] if problems else None  # after the look at the thread
                what = f"the end of the save of {self._path}"
                answers = self._team.settle(what, error, message=is_writing, channel=channel)
                is_done = not answers[0]
        finally:
            if thread is not None:
                thread.join()  # what has been begun is whole, also when another worker is lost

    def _try_to_commit(self, problems: list[Exception]) -> None:
        try:
            self._commit()
        except Exception as problem:
            problems.append(problem)

    def _commit(self) -> None:
        parts, finish = self._parts, self._finish_arrays
        assert parts is not None
        self._finish_arrays = None
        try:
            with reported_as_unwritten(self._path):
                if finish is not None:
                    finish()
                self._note(lambda: parts.commit(self._manifest))
        except BaseException:
            parts.abandon()
            raise

    def finish_in_background(self) -> None:
        """Does the same on a thread of its own; `wait` raises what went wrong."""
        # In a cluster the threads meet those of other workers, in the order of the saves.
        earlier = [] if self._team.is_alone else list(_unfinished)
        self._thread = threading.Thread(
            target=self._run, args=(earlier,), name="replicax-checkpoint"
        )
        _unfinished.add(self)
        _wait_at_exit()
        self._thread.start()

    def _run(self, earlier: list[Writing]) -> None:
        for writing in earlier:
            writing.join()
        try:
            self.finish(BACKGROUND)
        except BaseException as error:  # of any kind: it is raised by `wait`
            self._error = error

    def join(self) -> None:
        """Waits for the thread."""
        if self._thread is not None:
            self._thread.join()

    def wait(self) -> None:
        """Waits for the thread, and raises what went wrong there, once."""
        self.join()
        error, self._error = self._error, None
        if error is not None:
            error.add_note(f"This happened while {self._path} was saved in the background.")
            raise error


_unfinished: weakref.WeakSet[Writing] = weakref.WeakSet()


@functools.cache
def _wait_at_exit() -> None:
    """Lets the end of the program wait for what is being saved.

    `atexit` would be too late, and so is a thread that is no daemon: by then thread
    pools take no more work, Orbax's included.
    """
    assert concurrent.futures.thread
    threading._register_atexit(lambda: [writing.join() for writing in list(_unfinished)])  # pyright: ignore
