"""Times steps the same way in every peer, and combines what the rounds say."""

from __future__ import annotations

import collections
import dataclasses
import math
import operator
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

IN_FLIGHT = 8
"""How many steps may be in flight; the CPU client of JAX aborts with more than 32."""

WARM_UP = 0.2
"""How many runs precede each that counts: other processes have had the caches meanwhile. Without
them the MLP (W2) took 3 to 10% more, depending on the peer."""

KINDS = ("wall_us", "cpu_us", "host_us")
"""Time on the clock, of all cores and of the thread that calls; microseconds a step."""

Times = dict[str, list[float]]
"""For each of `KINDS`, one number a round."""


wait_for: Callable[[Any], Any] = operator.methodcaller("block_until_ready")
"""Waits for an array of JAX; `jax.block_until_ready`, which takes nests, needs 1 us more."""


def _nothing(result: Any) -> None:
    del result


@dataclasses.dataclass(slots=True)
class Step:
    """What a peer measures.

    Attributes:
        run: Does it once, and returns what `wait` and `read` understand.
        read: The loss of this process's replicas, as part of the mean over all.
        wait: Waits until a result is there.
        steps_per_run: How many steps `run` does.
        many: Does so many steps at once, where a library has its own loop.
        is_bounded: Whether the library itself bounds how many steps are in flight, so that its
            user's loop need not.
        close: Frees what the step holds.
    """

    run: Callable[[], Any]
    read: Callable[[Any], float]
    wait: Callable[[Any], Any] = _nothing
    steps_per_run: int = 1
    many: Callable[[int], Any] | None = None
    is_bounded: bool = False
    close: Callable[[], Any] | None = None


def _repeat(step: Step, runs: int) -> None:
    if step.many is not None:
        step.many(runs)
        return
    if step.is_bounded:
        result = None
        for _ in range(runs):
            result = step.run()
        step.wait(result)
        return
    waiting: collections.deque[Any] = collections.deque()
    for _ in range(runs):
        if len(waiting) == IN_FLIGHT:
            step.wait(waiting.popleft())
        waiting.append(step.run())
    for result in waiting:
        step.wait(result)


def measure(step: Step, runs: int, warm_up: float = WARM_UP) -> dict[str, float]:
    """The `KINDS` of time per step, of so many runs, after `warm_up` times as many."""
    if warm_up:
        _repeat(step, math.ceil(runs * warm_up))
    wall, cpu, host = time.perf_counter(), time.process_time(), time.thread_time()
    _repeat(step, runs)
    took = (time.perf_counter() - wall, time.process_time() - cpu, time.thread_time() - host)
    scale = 1e6 / (runs * step.steps_per_run)
    return {kind: round(scale * seconds, 3) for kind, seconds in zip(KINDS, took, strict=True)}


def spread(values: Sequence[float]) -> float:
    """Half the distance of the quartiles, relative to the median.

    >>> spread([9.0, 10.0, 10.0, 11.0, 12.0])
    0.05
    """
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2 / middle if middle else 0.0


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios within each round, which a slow moment changes little.

    >>> paired_ratio([2.0, 20.0, 2.2], [1.0, 10.0, 2.0])
    2.0
    """
    pairs = list(zip(ours, theirs, strict=False))
    return statistics.median(one / other for one, other in pairs if other) if pairs else math.nan


def paired_interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Where `paired_ratio` would be after very many rounds, with a probability of 95%.

    Between two of the ratios, counted from both ends: half of all ratios are below their median,
    however they are distributed. Everything is possible where there are fewer than six.

    >>> paired_interval([1.0, 1.1, 0.9, 1.2, 1.0, 1.0], [1.0] * 6)
    (0.9, 1.2)
    >>> paired_interval([1.0], [1.0])
    (0.0, inf)
    """
    ratios = sorted(one / other for one, other in zip(ours, theirs, strict=False) if other)
    outside, chance = 0, 0.5 ** len(ratios)  # of having none of them below the median
    below = chance
    while below <= 0.025:
        outside += 1
        chance *= (len(ratios) - outside + 1) / outside
        below += chance
    return (ratios[outside - 1], ratios[-outside]) if outside else (0.0, math.inf)


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the differences within each round.

    >>> paired_difference([2.0, 20.0, 3.0], [1.0, 10.0, 1.0])
    2.0
    """
    pairs = list(zip(ours, theirs, strict=False))
    return statistics.median(one - other for one, other in pairs) if pairs else math.nan


def growth_exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of a straight line through the logarithms: 1 for a cost that grows linearly.

    >>> round(growth_exponent([1, 10, 100], [2.0, 20.0, 200.0]), 6)
    1.0
    """
    xs, ys = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    return statistics.linear_regression(xs, ys).slope
