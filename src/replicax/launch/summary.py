"""What is said at the end of a run. Pure text."""

from __future__ import annotations

import dataclasses
import pathlib

from replicax.launch import exit_codes
from replicax.launch.outcome import Ending, Outcome, WorkerExit

SHOWN_LINES = 20
_SHOWN_ATTEMPTS = 10
_INDENT = "    "


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """How a run went.

    Attributes:
        outcomes: How each attempt ended, in order.
        seconds: How long the run took.
        log_dir: Where the output of the workers is; None if it was not kept.

    Example:
        >>> failed = Outcome(Ending.FAILED, WorkerExit(1, 3, ("ValueError: no",)), 3)
        >>> print(Summary((failed,), 1.5).text())
        The run failed with exit code 3 after 1.5 s and 1 attempt.
        worker 1 failed first: exit code 3. Its last lines:
            ValueError: no
    """

    outcomes: tuple[Outcome, ...]
    seconds: float
    log_dir: pathlib.Path | None = None

    @property
    def code(self) -> int:
        """The exit code of the run."""
        return self.outcomes[-1].code

    def text(self) -> str:
        """The summary, several lines."""
        last = self.outcomes[-1]
        lines = [self._headline(last), *self._earlier()]
        if last.reason:
            lines.append(last.reason)
        if last.first is not None:
            lines += _about(last.first, last.ending)
        if self.log_dir is not None:
            lines.append(f"The output of each worker is in {self.log_dir}")
        return "\n".join(lines)

    def _headline(self, last: Outcome) -> str:
        number = len(self.outcomes)
        attempts = f"{number} attempt{'s' if number > 1 else ''}"
        how = {
            Ending.DONE: "is done",
            Ending.FAILED: f"failed with {exit_codes.describe(last.code)}",
            Ending.PREEMPTED: f"was preempted and ends with exit code {last.code}",
            Ending.INTERRUPTED: f"was interrupted and ends with exit code {last.code}",
        }[last.ending]
        return f"The run {how} after {self.seconds:.1f} s and {attempts}."

    def _earlier(self) -> list[str]:
        numbered = list(enumerate(self.outcomes[:-1], start=1))
        shown = numbered[-_SHOWN_ATTEMPTS:]
        lines = [f"({len(numbered) - len(shown)} earlier attempts are not listed)"]
        lines = lines if len(shown) < len(numbered) else []
        return lines + [f"Attempt {number}: {cause(outcome)}" for number, outcome in shown]


def cause(outcome: Outcome) -> str:
    """What ended an attempt, in a few words.

    Example:
        >>> cause(Outcome(Ending.FAILED, WorkerExit(1, -9), 137))
        'worker 1: killed by SIGKILL'
    """
    if outcome.first is not None:
        return outcome.first.describe()
    return outcome.reason or outcome.ending.value


def _about(first: WorkerExit, ending: Ending) -> list[str]:
    verb = "failed" if ending is Ending.FAILED else "left"
    end = exit_codes.describe(first.returncode)
    lines = first.last_lines[-SHOWN_LINES:]
    if not lines:
        return [f"worker {first.worker_id} {verb} first: {end}. It printed nothing."]
    said = f"worker {first.worker_id} {verb} first: {end}. Its last lines:"
    return [said, *(f"{_INDENT}{line}" for line in lines)]
