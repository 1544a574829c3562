"""Counts what a step costs, where a clock would only say how busy the machine is."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import replicax as rx

SIZES = (784, 512, 512, 10)


def mirrored(num_replicas: int) -> rx.MirroredStrategy:
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])


def operands(text: str) -> int:
    """How many arrays all the all-reduces of a compiled program carry."""
    calls = re.findall(r" all-reduce(?:-start)?\(([^)]*)\)", text)
    return sum(len(call.split(",")) for call in calls)


def donated(text: str) -> int:
    """How many inputs of a compiled program are also its outputs."""
    return len(re.findall(r"(?:may|must)-alias", text.partition("\n")[0]))


def python_calls(run: Callable[[], Any]) -> int:
    """How many functions, of Python and of C, are called in this thread."""
    count = 0

    def profiler(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profiler)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count - 1  # setprofile itself


def steady_calls(run: Callable[[], Any]) -> int:
    """The calls of a step that has been made before: the median, as a wait may come between."""
    for _ in range(20):
        run()
    counts = sorted(python_calls(run) for _ in range(21))
    return counts[10]


def perceptron() -> tuple[list[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Initial values and one batch of the small network that the benchmarks train."""
    rng = np.random.default_rng(0)
    params = []
    for rows, columns in itertools.pairwise(SIZES):
        params += [
            rng.normal(size=(rows, columns)).astype(np.float32) / np.float32(np.sqrt(rows)),
            np.zeros(columns, np.float32),
        ]
    x = rng.normal(size=(16, SIZES[0])).astype(np.float32)
    return params, (x, rng.integers(0, 10, 16).astype(np.int32))
