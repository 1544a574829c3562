"""One process of one peer: builds what it is told to, and measures when it is asked.

The driver writes one JSON command a line and reads one JSON answer a line. Whatever a library
prints goes to the error stream instead.

Usage: python -m benchmarks.worker '{"peer": ..., "workload": ..., "replicas": ...}'
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import importlib
import json
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from benchmarks import timing
from benchmarks.cases import PEERS
from benchmarks.timing import Step

CHECKED_STEPS = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Assignment:
    """What this process is.

    Attributes:
        peer: Which of `cases.PEERS`.
        workload: W1 to W10.
        replicas: How many in all processes.
        rank: Of this process.
        processes: How many there are.
        address: Where processes meet.
    """

    peer: str
    workload: str
    replicas: int
    rank: int = 0
    processes: int = 1
    address: str = ""

    def build(self, variant: str) -> Step:
        """The step of a variant; the modules of a peer have a table of workloads."""
        module = importlib.import_module(f"benchmarks.peers.{PEERS[self.peer].module}")
        table: dict[str, Callable[[Assignment, str], Step]] = module.STEPS
        return table[self.workload](self, variant)


def memory_mb(key: str) -> float:
    """``VmHWM``, the most that this process has had, or ``VmRSS``, what it has."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


def give_back_free_memory() -> None:
    """Lets the C library return what is free to the system, so that the rest is in use.

    Not by `replicax.backend.host_memory`: most peers must not import Replicax.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def _value_after_checked_steps(step: Step) -> float:
    """One step at a time, so that every peer has made the same number of them."""
    if step.steps_per_run > 1:
        return step.read(step.run())
    results = [step.read(step.run()) for _ in range(CHECKED_STEPS)]
    return results[-1]


class Worker:
    """Answers commands."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._step: Step | None = None

    def build(self, variant: str) -> dict[str, Any]:
        """Makes the step and its first runs; answers the loss after them."""
        self._step = self._assignment.build(variant)
        return {"value": _value_after_checked_steps(self._step)}

    def measure(self, runs: int) -> dict[str, Any]:
        """Answers what a step costs."""
        assert self._step is not None
        return timing.measure(self._step, runs)

    def go_on(self, runs: int) -> dict[str, Any]:
        """As `measure`, of exactly so many runs."""
        assert self._step is not None
        return timing.measure(self._step, runs, warm_up=0.0)

    def memory(self, _: Any) -> dict[str, Any]:
        """Answers how much memory the process has, and has had."""
        gc.collect()
        give_back_free_memory()
        return {"peak_mb": memory_mb("VmHWM"), "now_mb": memory_mb("VmRSS")}

    def drop(self, _: Any) -> dict[str, Any]:
        """Forgets the step."""
        if self._step is not None and self._step.close is not None:
            self._step.close()
        self._step = None
        gc.collect()
        return {}


def main() -> None:
    """Answers until the commands end."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker = Worker(Assignment(**json.loads(sys.argv[1])))
    for line in sys.stdin:
        (command, argument), *_ = json.loads(line).items()
        answers.write(json.dumps(getattr(worker, command)(argument)) + "\n")
    os._exit(0)  # a worker that has joined others would wait for them


if __name__ == "__main__":
    main()
