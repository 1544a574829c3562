"""How an attempt ended: for one worker, for all of them, and for those of several nodes."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

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
        can_restart: Whether another attempt is possible at all.

    Example:
        >>> Outcome(Ending.DONE).code
        0
    """

    ending: Ending
    first: WorkerExit | None = None
    code: int = 0
    reason: str = ""
    can_restart: bool = True

    def to_json(self) -> dict[str, Any]:
        """A form that JSON can carry."""
        return dataclasses.asdict(self) | {"ending": self.ending.value}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Outcome:
        """The outcome that `to_json` was made from.

        Example:
            >>> outcome = Outcome(Ending.FAILED, WorkerExit(1, 3, ("a line",)), 3)
            >>> Outcome.from_json(outcome.to_json()) == outcome
            True
        """
        first = fields["first"]
        if first is not None:
            lines = tuple(map(str, first["last_lines"]))
            first = WorkerExit(int(first["worker_id"]), int(first["returncode"]), lines)
        return cls(
            Ending(fields["ending"]),
            first,
            int(fields["code"]),
            str(fields["reason"]),
            bool(fields["can_restart"]),
        )


def combine(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of an attempt on several nodes: the worst one, the earliest of several.

    Args:
        outcomes: One for each node, in the order in which they came to their end.

    Example:
        >>> combine([Outcome(Ending.DONE), Outcome(Ending.FAILED, code=3)]).code
        3
    """
    order = list(Ending)
    worst = min(outcomes, key=lambda outcome: order.index(outcome.ending))
    return dataclasses.replace(worst, can_restart=all(o.can_restart for o in outcomes))
