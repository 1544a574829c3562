"""Compares now and then what all workers pass to the steps that they repeat.

An argument that is no per-replica value must be the same on all workers, or copies of variables
drift apart. The first call of a program is compared before it runs (`functions.program`, which
calls this module). Of the later ones every `EVERY`-th is compared here by a thread, so that no
step waits for it. What differs is raised `EVERY` calls later, by the same call on every worker.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from replicax.backend import workers
from replicax.backend.digests import digest, on_host
from replicax.backend.workers import Workers
from replicax.core.errors import WorkersDifferError

EVERY = 50
MOST_ELEMENTS = 1 << 18
"""Of a larger array so many are compared, evenly spread."""

_CHANNEL = "comparing"
_DELETED = ""


class Series:
    """The calls of one program, of which some are compared.

    Args:
        what: What is compared, for errors; the same on all workers.
    """

    __slots__ = ("_count", "_latest", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0
        self._latest: _Comparison | None = None

    def note(self, arrays: Sequence[Any]) -> None:
        """To be called after each launch of the program, with what may differ between workers.

        Raises:
            WorkersDifferError: If something that was compared before differed.
            WorkerLostError: If a worker has gone.
        """
        self._count += 1
        if self._count % EVERY:
            return
        latest, self._latest = self._latest, None
        if latest is not None:
            latest.refuse_difference()
        self._latest = _Comparison(f"{self._what} in call {self._count}", arrays)
        _comparer().put(self._latest)


class _Comparison:
    """What one call was passed on this worker, to be compared with what others were."""

    def __init__(self, what: str, arrays: Sequence[Any]) -> None:
        self._what = what
        self._arrays = [_as_they_are_now(array) for array in arrays]
        self._is_over = threading.Event()
        self._error: Exception | None = None

    def make(self, group: Workers) -> None:
        """Compares; in a thread."""
        try:
            own = [_digest(array) for array in self._arrays]
            self._arrays.clear()
            rows = group.exchange(self._what, own, channel=_CHANNEL)
            differing = [rank for rank, row in enumerate(rows) if not _are_alike(row, rows[0])]
            if differing:
                others = ", ".join(group.names[rank] for rank in differing)
                self._error = WorkersDifferError(
                    f"{self._what} differs between workers: {others} from {group.names[0]}. It was "
                    "the same in the first call. An argument that is no per-replica value must be "
                    "the same on all workers, or the copies of variables drift apart: restore the "
                    "last checkpoint, and pass strategy.reduce(...) of it, or a per-replica value."
                )
        except Exception as error:
            self._error = error
        self._is_over.set()

    def refuse_difference(self) -> None:
        """Waits for the comparison, which began many calls ago, and raises what it found."""
        self._is_over.wait()
        if self._error is not None:
            raise self._error


_queue: queue.SimpleQueue[_Comparison] | None = None


def _comparer() -> queue.SimpleQueue[_Comparison]:
    """What a thread takes its work from; it starts with the first comparison."""
    global _queue
    if _queue is None:
        _queue = queue.SimpleQueue()
        threading.Thread(
            target=_compare_all, args=(_queue,), name="replicax-compare", daemon=True
        ).start()
    return _queue


def _compare_all(waiting: queue.SimpleQueue[_Comparison]) -> None:
    group = workers.require()
    while True:
        waiting.get().make(group)


def _as_they_are_now(array: Any) -> Any:
    """An array of the host may be changed before the next step."""
    return array if isinstance(array, jax.Array) else np.array(_sampled(np.asarray(array)))


def _digest(array: Any) -> str:
    if isinstance(array, jax.Array) and array.is_deleted():
        return _DELETED
    try:
        return digest(_sampled(on_host(array)))
    except RuntimeError:  # it was deleted meanwhile
        return _DELETED


def _sampled(array: np.ndarray) -> np.ndarray:
    if array.size <= MOST_ELEMENTS:
        return array
    return array.reshape(-1)[:: -(-array.size // MOST_ELEMENTS)]


def _are_alike(row: Sequence[str], other: Sequence[str]) -> bool:
    pairs = zip(row, other, strict=True)
    return all(_DELETED in pair or pair[0] == pair[1] for pair in pairs)
