"""How an attempt ended: for one worker, and for all of them."""

from __future__ import annotations

import dataclasses
import enum

from replicax.launch import exit_codes


class Ending(enum.Enum):
    """How an attempt ended; the first of several that apply counts.

    Example:
        >>> Ending("failed") is Ending.FAILED
        True
    """

    FAILED = "failed"
    INTERRUPTED = "interrupted"
    PREEMPTED = "preempted"
    DONE = "done"


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerExit:
    """The end of one worker.

    Attributes:
        worker_id: Its number in the cluster.
        returncode: As `subprocess` has it: negative for a signal.
        last_lines: The end of what it printed.

    Example:
        >>> WorkerExit(1, -9).describe()
        'worker 1: killed by SIGKILL'
    """

    worker_id: int
    returncode: int
    last_lines: tuple[str, ...] = ()

    def describe(self) -> str:
        """Who ended, and how."""
        return f"worker {self.worker_id}: {exit_codes.describe(self.returncode)}"


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How all workers of an attempt ended.

    Attributes:
        ending: What counts for the whole.
        first: The worker that decided it; None if none did.
        code: The exit code that a run which ends like this has.
        reason: What ended it, where that was no worker.

    Example:
        >>> Outcome(Ending.DONE).code
        0
    """

    ending: Ending
    first: WorkerExit | None = None
    code: int = 0
    reason: str = ""
