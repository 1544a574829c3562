"""Times steps the same way in every benchmark, and says how many of what were compared."""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

Times = dict[str, list[tuple[float, float]]]
"""Wall and CPU microseconds per step, round by round, of each of the runs."""

KINDS = ("wall_us", "cpu_us")


def measure(run: Callable[[], Any], steps: int) -> tuple[float, float]:
    """Wall and CPU microseconds per step, with at most 8 steps in flight."""
    waiting: list[Any] = []
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        if len(waiting) == 8:
            waiting.pop(0).block_until_ready()
        waiting.append(run())
    jax.block_until_ready(waiting)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return 1e6 * wall / steps, 1e6 * cpu / steps


def alternate(
    runs: Mapping[str, Callable[[], Any]],
    *,
    steps: int,
    warm_up: int,
    rounds: int,
    seconds: float = 300.0,
) -> Times:
    """Measures all `runs` in alternating rounds, for `seconds` at the most."""
    for run in runs.values():
        measure(run, warm_up)
    times: Times = {name: [] for name in runs}
    end = time.perf_counter() + seconds
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(measure(run, steps))
        if time.perf_counter() > end:
            break
    return times


def median(times: Times, name: str, kind: str) -> float:
    """The median over the rounds."""
    return statistics.median(one[KINDS.index(kind)] for one in times[name])


def paired_ratio(times: Times, ours: str, theirs: str, kind: str) -> float:
    """The median of the ratios within each round, which a slow moment does not change."""
    index = KINDS.index(kind)
    pairs = zip(times[ours], times[theirs], strict=True)
    return statistics.median(one[index] / other[index] for one, other in pairs)


def compared(times: Times, ours: str, theirs: str) -> dict[str, float]:
    """The medians of two runs and their ratios, by what they are called in a row of results."""
    row: dict[str, float] = {}
    for kind in KINDS:
        medians = {name: median(times, name, kind) for name in (theirs, ours)}
        row |= {f"{name}_{kind}": round(value, 1) for name, value in medians.items()}
        row[f"ratio_{kind}"] = round(medians[ours] / medians[theirs], 3)
        row[f"paired_ratio_{kind}"] = round(paired_ratio(times, ours, theirs, kind), 3)
    return row


def parse_options(description: str | None, **lists: list[int]) -> argparse.Namespace:
    """The options of a benchmark: the number of rounds, and lists of what is varied."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    for name, default in lists.items():
        parser.add_argument(f"--{name}", type=int, nargs="*", default=default)
    return parser.parse_args()


def environment() -> dict[str, str]:
    """The versions that were measured."""
    return {"jax": jax.__version__, "python": platform.python_version()}
