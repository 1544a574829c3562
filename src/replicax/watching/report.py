"""`WatchReport`: the figures of a watched loop, as data, as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from replicax.core import recording
from replicax.core.recording import Recorded
from replicax.watching.memory import MemoryUse
from replicax.watching.pace import SLOW, WorkerPace, with_slowdowns

SHARES = {
    "input": recording.INPUT,
    "dispatch": recording.DISPATCH,
    "devices": recording.DEVICES,
    "workers": recording.WORKERS,
    "loop": recording.LOOP,
}
"""What the time of the loop is divided into, in the order in which it is shown."""


@dataclasses.dataclass(frozen=True, slots=True)
class WatchReport:
    """What a watched loop has done so far; ``str()`` of it is a summary of a few lines.

    Attributes:
        strategy: What is watched, in words.
        seconds: Since the watch was opened.
        compiling_seconds: How much of that went into tracing and compiling. Rates and shares are
            of the rest.
        steps: How many steps were made.
        steps_per_second: Their rate.
        examples: How many examples they had, on all replicas; None if that is not known.
        examples_per_second: Their rate.
        shares: Which part of the time went where: "input", "dispatch", "devices", "workers" and
            "loop". They add up to 1.
        memory_of: Whose memory it is: a device that says it, or "process".
        memory_bytes: The memory in use.
        peak_memory_bytes: The most that was in use since the process began.
        programs: How many programs were traced, by function.
        retraces: How many of them were not the first of their function, by function.
        workers: How each worker makes its steps, on the chief; elsewhere this one only.
        ended_by: The name of the exception that ended the loop, or None.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> step = rx.function(lambda x: x.sum())
        >>> dataset = strategy.distribute_dataset([[1.0, 2.0], [3.0, 4.0]])
        >>> with rx.watch(strategy, file="/dev/null") as watch:
        ...     for batch in dataset:
        ...         result = strategy.run(step, args=(batch,))
        >>> report = watch.report()
        >>> report.steps, report.examples, report.retraces
        (2, 4, {})
    """

    strategy: str
    seconds: float
    compiling_seconds: float
    steps: int
    steps_per_second: float
    examples: int | None
    examples_per_second: float | None
    shares: dict[str, float]
    memory_of: str
    memory_bytes: int
    peak_memory_bytes: int
    programs: dict[str, int]
    retraces: dict[str, int]
    workers: tuple[WorkerPace, ...]
    ended_by: str | None = None

    @property
    def slow_workers(self) -> tuple[str, ...]:
        """The names of the workers that take 1.3 times as long for a step as the median."""
        return tuple(worker.name for worker in self.workers if worker.slowdown >= SLOW)

    def to_json(self) -> str:
        """The figures as one line of JSON.

        Returns:
            An object with the attributes of the report and `slow_workers`.
        """
        fields = dataclasses.asdict(self) | {"slow_workers": self.slow_workers}
        return json.dumps({"watch": _rounded(fields)})

    def __str__(self) -> str:
        compiling = f", {self.compiling_seconds:.1f} s of them compiling"
        first = f"{self.strategy}: {self.steps:,} steps in {self.seconds:.1f} s"
        lines = [first + (compiling if self.compiling_seconds >= 0.05 else "")]
        if self.ended_by is not None:
            lines.append(f"ended by   {self.ended_by}")
        lines.append(f"steps      {_rate(self.steps_per_second)}")
        if self.examples_per_second is not None:
            lines.append(f"examples   {_rate(self.examples_per_second)}")
        shown = ", ".join(f"{name} {share:.0%}" for name, share in self.shares.items())
        lines += [f"time       {shown}", f"memory     {memory_text(self)}"]
        if self.programs:
            lines.append(f"programs   {programs_text(self)}")
        return "\n".join([*lines, *(f"workers    {text}" for text in slow_texts(self))])


def made(
    strategy: str,
    recorded: Recorded,
    memory: MemoryUse,
    others: Sequence[WorkerPace],
    *,
    steps: int,
    examples: int | None,
    ended_by: str | None = None,
) -> WatchReport:
    """The report of what was recorded.

    Args:
        strategy: In words.
        recorded: Of the thread of the loop.
        memory: In use.
        others: How the workers make their steps.
        steps: How many steps there were.
        examples: How many examples they had, if that is known.
        ended_by: The name of the exception that ended the loop.
    """
    compiling = recorded.seconds[recording.COMPILING]
    seconds = sum(recorded.seconds)
    active = seconds - compiling
    parts = [recorded.seconds[phase] for phase in SHARES.values()]
    return WatchReport(
        strategy=strategy,
        seconds=seconds,
        compiling_seconds=compiling,
        steps=steps,
        steps_per_second=steps / active if active else 0.0,
        examples=examples,
        examples_per_second=None if examples is None else examples / active if active else 0.0,
        shares={n: s / active if active else 0.0 for n, s in zip(SHARES, parts, strict=True)},
        memory_of=memory.of,
        memory_bytes=memory.now,
        peak_memory_bytes=memory.peak,
        programs=dict(recorded.programs),
        retraces=dict(recorded.retraces),
        workers=with_slowdowns(others),
        ended_by=ended_by,
    )


def num_steps(recorded: Recorded) -> int:
    """How many steps a loop has made.

    A batch that was handed out is a step, and so is a call of the function that is called most:
    a loop may take its batches elsewhere, and call others beside it.
    """
    return max(recorded.num_batches, *recorded.calls.values(), 0)


def own_and_waiting(recorded: Recorded) -> tuple[float, float]:
    """The seconds that a worker has spent itself, and those that it has waited."""
    seconds = recorded.seconds
    waiting = seconds[recording.DEVICES] + seconds[recording.WORKERS]
    return sum(seconds) - seconds[recording.COMPILING] - waiting, waiting


def memory_text(report: WatchReport) -> str:
    """The memory in words."""
    now, peak = _size(report.memory_bytes), _size(report.peak_memory_bytes)
    of = "of this process" if report.memory_of == "process" else f"on {report.memory_of}"
    return f"{now} {of}, {peak} at most"


def programs_text(report: WatchReport) -> str:
    """The programs that were traced, in words."""
    count = sum(report.programs.values())
    again = ", ".join(
        f"{name} {'once' if number == 1 else f'{number} times'}"
        for name, number in report.retraces.items()
    )
    return f"{count} traced" + (f"; again: {again}" if again else "")


def slow_texts(report: WatchReport) -> list[str]:
    """For each slow worker what it does to the others."""
    return [
        f"{worker.name} is slow: its steps take {worker.slowdown:.1f} times the median, "
        f"{1e3 * worker.own_seconds:.3g} ms of each its own"
        for worker in report.workers
        if worker.slowdown >= SLOW
    ]


def _rate(rate: float) -> str:
    return f"{rate:,.1f} per second" if rate < 1000 else f"{rate:,.0f} per second"


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value
