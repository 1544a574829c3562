"""The workers that save and restore a checkpoint together.

Every worker calls ``save`` and ``restore``; the first one writes. What goes wrong on one of
them is told to all before anything follows from it, so that all raise, or none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from replicax.backend import workers
from replicax.checkpoint import errors
from replicax.checkpoint.errors import OtherWorkerError
from replicax.core.errors import ReplicaxError, WorkersDifferError

BACKGROUND = "checkpoint"
"""The channel of threads that write; they follow one another."""

MAIN = "main"
"""The channel of the main thread."""

_KNOWN: dict[str, Callable[[str], Exception]] = {
    cls.__name__: cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, ReplicaxError) and cls is not ReplicaxError
}


@dataclasses.dataclass(frozen=True, slots=True)
class Team:
    """All workers of this process's cluster, or this process alone.

    Attributes:
        rank: The number of this worker.
        names: What messages call each worker; one name if there is no cluster.

    Example:
        >>> alone = current_team()
        >>> alone.is_chief, alone.num_workers, alone.settle("a save", message=3)
        (True, 1, [3])
        >>> alone.settle("a save", ValueError("no room"))
        Traceback (most recent call last):
            ...
        ValueError: no room
    """

    rank: int
    names: tuple[str, ...]

    @property
    def is_chief(self) -> bool:
        """Whether this worker writes what there is one of."""
        return self.rank == 0

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return len(self.names)

    @property
    def is_alone(self) -> bool:
        """Whether this process is in no cluster."""
        return len(self.names) == 1

    def settle(
        self,
        what: str,
        error: Exception | None = None,
        *,
        message: Any = None,
        channel: str = MAIN,
    ) -> list[Any]:
        """The messages of all workers, if none has an error; every worker must call it.

        Args:
            what: What the workers do, the same on all of them.
            error: What went wrong on this one.
            message: What this one tells the others; plain values, for JSON.
            channel: As for ``Workers.exchange``.

        Raises:
            Exception: The error of the first worker that has one, on every worker; of the same
                class if it is one of the errors of checkpoints.
            WorkerLostError: If a worker has gone, or does not come.
        """
        if self.is_alone:
            if error is not None:
                raise error
            return [message]
        told = None if error is None else [type(error).__name__, str(error)]
        try:
            answers = workers.require().exchange(what, [told, message], channel=channel)
        except Exception as failure:
            if error is not None and not isinstance(failure, WorkersDifferError):
                raise failure from error
            raise
        failed = [rank for rank, (problem, _) in enumerate(answers) if problem is not None]
        if failed:
            kind, text = answers[failed[0]][0]
            if error is not None and type(error).__name__ == kind:
                raise error
            raise self._error_of(self.names[failed[0]], kind, text)
        return [message for _, message in answers]

    @staticmethod
    def _error_of(worker: str, kind: str, text: str) -> Exception:
        if kind in _KNOWN:
            return _KNOWN[kind](f"{text} (On {worker}.)")
        return OtherWorkerError(f"{worker} failed with {kind}: {text}")

    def require_same(self, what: str, messages: list[Any], advice: str) -> None:
        """Raises, on every worker, unless all have brought the same.

        Raises:
            WorkersDifferError: Names the first worker that differs from the chief.
        """
        for rank, message in enumerate(messages):
            if message != messages[0]:
                raise WorkersDifferError(
                    f"{what} differs between workers: {messages[0]!r} on {self.names[0]}, "
                    f"{message!r} on {self.names[rank]}. {advice}"
                )


def current_team() -> Team:
    """The team of this process; does not start JAX."""
    joined = workers.current()
    return Team(0, ("this process",)) if joined is None else Team(joined.rank, joined.names)
