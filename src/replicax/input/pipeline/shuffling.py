"""Shuffles: the order of pass e is a function of the seed and e, and of nothing else.

So every worker computes the same order, and a pass that is resumed continues it. Where
elements are found by index, every one of them comes exactly once, and none is held in
memory. Elements move within consecutive windows of the buffer size; the last window may
be shorter. (Grain's own window shuffle runs over the end of the data, into the next pass.)
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np

from replicax.input.pipeline.permutation import mixed_seed, permuted, permuted_one
from replicax.input.pipeline.stage import ENDLESS_LENGTH, Choosing, Places, as_stream
from replicax.input.pipeline.streams import require_grain
from replicax.input.source import INFINITE, UNKNOWN

DEFAULT_SEED = 0x5EED
"""The seed of ``shuffle(seed=None)``: the same on every worker and in every run."""

_GRAIN_SEEDS = 2**31


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Shuffle(Choosing):
    """Another order of the same elements.

    Attributes:
        buffer_size: How many elements are mixed at a time; `UNKNOWN` mixes all.
        seed: What the order is computed from.
        reshuffles: Whether every pass has an order of its own.
    """

    buffer_size: int
    seed: int
    reshuffles: bool

    def stream(self, epoch: int) -> Any:
        """Window by window, as elements are read."""
        return require_grain().experimental.WindowShuffleIterDataset(
            as_stream(self.input, epoch),
            window_size=sys.maxsize if self.buffer_size == UNKNOWN else self.buffer_size,
            seed=mixed_seed(self.seed, epoch if self.reshuffles else 0) % _GRAIN_SEEDS,
        )

    def locate(self, epochs: Places, positions: Places) -> tuple[Places, Places]:
        """Moves every element within its window."""
        count = self.input.count
        length = ENDLESS_LENGTH if count == INFINITE else count
        passes: Any = epochs
        if isinstance(positions, int):
            first, size, seed = self.window_at(passes, positions, length)
            return epochs, first + permuted_one(positions - first, size, seed)
        window_ids = positions // self.window_of(length)
        moved = np.empty_like(positions)
        waiting = np.ones(len(positions), bool)
        while waiting.any():  # once for every window of every pass that has elements here
            one = int(np.argmax(waiting))
            together = waiting & (passes == passes[one]) & (window_ids == window_ids[one])
            first, size, seed = self.window_at(int(passes[one]), int(positions[one]), length)
            moved[together] = first + permuted(positions[together] - first, size, seed)
            waiting &= ~together
        return epochs, moved

    def window_of(self, length: int) -> int:
        """How many elements of a pass of `length` are mixed at a time."""
        return max(1, length if self.buffer_size == UNKNOWN else min(self.buffer_size, length))

    def window_at(self, epoch: int, position: int, length: int) -> tuple[int, int, int]:
        """Start, size and seed of the window at a position of a pass."""
        window = self.window_of(length)
        window_id = position // window
        first = window_id * window
        seed = mixed_seed(self.seed, epoch if self.reshuffles else 0, window_id)
        return first, min(window, length - first), seed
