"""Times a step the same way in every benchmark."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax


def measure(run: Callable[[], Any], steps: int) -> tuple[float, float]:
    """Wall and CPU microseconds per step, waiting at most 8 steps behind."""
    waiting: list[Any] = []
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        waiting.append(run())
        if len(waiting) > 8:
            waiting.pop(0).block_until_ready()
    jax.block_until_ready(waiting)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return 1e6 * wall / steps, 1e6 * cpu / steps
