"""Writes one checkpoint, at once or in the background.

What is saved are the values at the moment of the call: arrays over devices are handed
out, so that no later step takes their buffers, and are copied to the host before the
call returns.
"""

from __future__ import annotations

import concurrent.futures.thread  # its own work at exit must be registered before ours
import functools
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from replicax.backend import compat
from replicax.backend.runahead import RUN_AHEAD
from replicax.checkpoint import files
from replicax.checkpoint.arrays import write_arrays
from replicax.checkpoint.entries import GROUPS, Entry, Record
from replicax.context import stack
from replicax.core.errors import ContextError
from replicax.execution.frame import current_frame

OnCommit = Callable[[], None]


def require_host_code(call: str) -> None:
    """Raises where values are not there yet, or are one replica's.

    Raises:
        ContextError: In a replica, or while a program is traced.
    """
    if current_frame() is not None or compat.is_staging():
        raise ContextError(
            f"{call} was called inside a function that is being compiled, where values do not "
            "exist yet. Call it between the steps."
        )
    if stack.has_strategy() and not stack.in_cross_replica_context():
        raise ContextError(
            f"{call} was called inside {stack.describe()}; a checkpoint is of all replicas. Call "
            "it outside run."
        )


class Snapshot:
    """The values of all entries at one moment.

    Attributes:
        records: What the manifest says of each, by key.
        aliases: For a thing with several keys, from the later ones to the first.
        arrays: The arrays, by group and name; zero-sized ones are left out.
    """

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        """Takes the values, between two steps of whatever thread makes them."""
        self.records: dict[str, Record] = {}
        self.aliases: dict[str, str] = {}
        groups: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
        first: dict[int, str] = {}
        with RUN_AHEAD.lock:
            for key, entry in entries.items():
                known = first.setdefault(entry.identity, key)
                if known != key:
                    self.aliases[key] = known
                else:
                    self.records[key] = entry.save(key, groups)
        self.arrays = {
            group: {name: array for name, array in named.items() if array.size}
            for group, named in groups.items()
        }

    def manifest(self) -> dict[str, Any]:
        """What the manifest says of the values."""
        return {"records": self.records, "aliases": self.aliases}


class Writing:
    """One checkpoint on its way to the disk."""

    def __init__(self, path: Path, snapshot: Snapshot, on_commit: OnCommit) -> None:
        """Begins; returns when the values have been copied from the devices.

        Args:
            path: Where the checkpoint will be.
            snapshot: What is in it.
            on_commit: Called when it is complete.
        """
        self._path = path
        self._manifest = snapshot.manifest()
        self._on_commit = on_commit
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._finish_arrays: Callable[[], None] | None = None
        self._is_first_worker = jax.process_index() == 0
        if self._is_first_worker:
            files.begin(path)
        arrays = {group: named for group, named in snapshot.arrays.items() if named}
        try:
            if arrays:
                parts = files.partial_path(path) / files.ARRAYS
                self._finish_arrays = write_arrays(parts, arrays)
        except BaseException:
            if self._is_first_worker:
                files.abandon(path)
            raise

    def finish(self) -> None:
        """Waits until all is written, and makes it a checkpoint."""
        try:
            if self._finish_arrays is not None:
                self._finish_arrays()
            if self._is_first_worker:
                files.commit(self._path, self._manifest)
                self._on_commit()
        except BaseException:
            if self._is_first_worker:
                files.abandon(self._path)
            raise

    def finish_in_background(self) -> None:
        """Does the same on a thread of its own; `wait` raises what went wrong."""
        self._thread = threading.Thread(target=self._run, name="replicax-checkpoint")
        _unfinished.add(self)
        _wait_at_exit()
        self._thread.start()

    def _run(self) -> None:
        try:
            self.finish()
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
