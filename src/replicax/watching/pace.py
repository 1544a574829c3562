"""Which worker of a cluster keeps the others waiting.

All workers make the same steps in the same time, because the quick ones wait for the slow ones in
the collectives of the program. What differs is how much of a step each of them waits.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

SLOW = 1.3
"""A worker is named if its step takes so many times that of the median."""

MIN_STEPS = 10
"""Before each worker has made so many, nobody is named."""


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerPace:
    """How one worker makes its steps.

    Attributes:
        name: What messages call it.
        steps: How many it has made.
        own_seconds: Of a step, what it spends itself: on input, dispatch and the code of the loop.
        waiting_seconds: Of a step, what it waits for devices and for other workers.
        slowdown: How long its step would be if it waited no longer than the worker that waits
            least, relative to the median of all workers.
    """

    name: str
    steps: int
    own_seconds: float
    waiting_seconds: float
    slowdown: float = 1.0


def with_slowdowns(paces: Sequence[WorkerPace]) -> tuple[WorkerPace, ...]:
    """The same with the `slowdown` of each.

    The worker that waits least waits for its devices only. The others wait for these as long, and
    for the rest of the time for that worker.

    Example:
        >>> rows = [("a", 0.001, 0.029), ("b", 0.002, 0.028), ("c", 0.025, 0.005)]
        >>> paces = [WorkerPace(name, 100, own, waiting) for name, own, waiting in rows]
        >>> [round(pace.slowdown, 2) for pace in with_slowdowns(paces)]
        [0.86, 1.0, 4.29]
    """
    if not paces or min(pace.steps for pace in paces) < MIN_STEPS:
        return tuple(paces)
    on_devices = min(pace.waiting_seconds for pace in paces)
    steps = [pace.own_seconds + on_devices for pace in paces]
    # Of two workers the quicker one: neither is far from the middle of both.
    middle = statistics.median_low(steps) or 1.0
    return tuple(
        dataclasses.replace(pace, slowdown=seconds / middle)
        for pace, seconds in zip(paces, steps, strict=True)
    )
