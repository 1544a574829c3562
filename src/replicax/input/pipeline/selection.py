"""Steps that choose, repeat and join elements without changing them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from replicax.core.errors import BatchError
from replicax.core.spec import TensorSpec
from replicax.input.pipeline import elements
from replicax.input.pipeline.stage import (
    ENDLESS_LENGTH,
    Choosing,
    Places,
    Rows,
    Stage,
    as_stream,
    scaled,
)
from replicax.input.pipeline.streams import every, picked, repeated, require_grain, stream
from replicax.input.source import INFINITE, UNKNOWN, BatchPart, PartOf

_ENDLESS_PASSES = 2**32  # passes of a stream without end, before those of its next pass


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Repeat(Choosing):
    """Pass after pass over the input.

    Attributes:
        times: How many passes, at least 1; None for no end.
    """

    keeps_order = True
    times: int | None

    @property
    def count(self) -> int:
        """All passes together; endless ones even of a stream that may turn out to be empty."""
        if self.input.count == 0:
            return 0
        if self.times is None:
            return INFINITE
        return scaled(self.input.count, self._all_passes)

    def _all_passes(self, count: int) -> int:
        total = count * (self.times or 1)
        return INFINITE if total >= ENDLESS_LENGTH else total

    def stream(self, epoch: int) -> Any:
        """Pass r of this pass is pass ``epoch * times + r`` of the input."""
        if self.input.count == INFINITE:
            return as_stream(self.input, epoch)
        times = _ENDLESS_PASSES if self.times is None else self.times
        endless = self.times is None

        def start() -> Iterator[elements.Element]:
            first = epoch * times
            passes = itertools.count(first) if endless else range(first, first + times)
            return repeated(functools.partial(as_stream, self.input), passes)

        return stream(start)

    @functools.cached_property
    def _input_count(self) -> int:
        return self.input.count

    @functools.cached_property
    def _counted_times(self) -> int:
        most = max(1, ENDLESS_LENGTH // self._input_count)
        return most if self.times is None else min(self.times, most)

    def locate(self, epochs: Places, positions: Places) -> tuple[Places, Places]:
        """Counts the passes of the input."""
        if self._input_count == INFINITE:
            return epochs, positions
        passes: Any = positions // self._input_count
        places: Any = positions % self._input_count
        return epochs * self._counted_times + passes, places


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Slice(Choosing):
    """Some of the elements, by their place.

    Attributes:
        start: The first.
        stop: The end, None for the end of the input.
        step: Every how many.
    """

    keeps_order = True
    start: int = 0
    stop: int | None = None
    step: int = 1

    @property
    def count(self) -> int:
        if self.stop is not None and self.start >= self.stop:
            return 0
        if self.input.count == INFINITE and self.stop is not None:
            return len(range(self.start, self.stop, self.step))
        return scaled(
            self.input.count,
            lambda count: len(range(*slice(self.start, self.stop, self.step).indices(count))),
        )

    @property
    def files(self) -> None:
        """Counting starts again with every worker's files."""
        return None

    def stream(self, epoch: int) -> Any:
        if self.count == 0:
            return stream(lambda: iter(()))
        dataset = as_stream(self.input, epoch)
        if self.stop is not None:
            dataset = require_grain().experimental.LimitIterDataset(dataset, self.stop)
        if (self.start, self.step) == (0, 1):
            return dataset
        return stream(lambda: picked(dataset, self.start, self.step))

    def locate(self, epochs: Places, positions: Places) -> tuple[Places, Places]:
        """Counts from `start` in steps."""
        return epochs, self.start + positions * self.step


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Zip(Stage):
    """Elements of several datasets side by side, until the shortest ends.

    Attributes:
        structure: How they are put together.
    """

    structure: Any

    @property
    def is_indexed(self) -> bool:
        return all(stage.is_indexed for stage in self.inputs)

    @property
    def count(self) -> int:
        counts = [stage.count for stage in self.inputs]
        if UNKNOWN in counts:
            return 0 if 0 in counts else UNKNOWN
        return min((count for count in counts if count != INFINITE), default=INFINITE)

    @property
    def rows(self) -> Rows:
        first, *others = (stage.rows for stage in self.inputs)
        if all(other == first for other in others):
            return first
        return Rows(is_batch=False if False in {r.is_batch for r in (first, *others)} else None)

    def at(self, epoch: int, position: int) -> elements.Element:
        return self._joined(stage.at(epoch, position) for stage in self.inputs)

    def stream(self, epoch: int) -> Any:
        streams = [as_stream(stage, epoch) for stage in self.inputs]
        zipped = require_grain().experimental.ZipIterDataset(streams, strict=False)
        return zipped.map(self._joined)

    def _joined(self, parts: Any) -> Any:
        return jax.tree_util.tree_unflatten(self.structure, list(parts))

    @property
    def is_gatherable(self) -> bool:
        return all(stage.is_gatherable for stage in self.inputs)

    def gather(self, epochs: np.ndarray, positions: np.ndarray) -> elements.Element:
        return self._joined(stage.gather(epochs, positions) for stage in self.inputs)

    def view(self, epoch: int, start: int, stop: int) -> elements.Element | None:
        """From each, put together, if all have one."""
        views = [stage.view(epoch, start, stop) for stage in self.inputs]
        return None if any(view is None for view in views) else self._joined(views)

    def find_spec(self) -> Any:
        return self._joined(stage.spec for stage in self.inputs)

    def find_example(self) -> elements.Element:
        return self._joined(stage.example for stage in self.inputs)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Concatenate(Stage):
    """The elements of one dataset after those of another."""

    @property
    def is_indexed(self) -> bool:
        return all(stage.is_indexed for stage in self.inputs)

    @property
    def count(self) -> int:
        counts = [stage.count for stage in self.inputs]
        if INFINITE in counts:
            return INFINITE
        return UNKNOWN if UNKNOWN in counts else sum(counts)

    @property
    def rows(self) -> Rows:
        """Common if all agree; a batch that is not full may be in the middle."""
        first, *others = (stage.rows for stage in self.inputs)
        if all(other.is_batch == first.is_batch for other in others):
            if all(other.size == first.size for other in others):
                uniform = all(rows.is_uniform for rows in (first, *others))
                return dataclasses.replace(first, is_uniform=uniform)
            return Rows(is_batch=first.is_batch)
        return Rows(is_batch=None)

    @property
    def files(self) -> tuple[str, ...] | None:
        files: list[str] = []
        for stage in self.inputs:
            if stage.files is None:
                return None
            files += stage.files
        return tuple(files) if len(set(files)) == len(files) else None

    def _which(self, position: int) -> tuple[Stage, int]:
        first, second = self.inputs
        if first.count == INFINITE or position < first.count:
            return first, position
        return second, position - first.count

    def at(self, epoch: int, position: int) -> elements.Element:
        """From the dataset that has this place."""
        stage, place = self._which(position)
        return stage.at(epoch, place)

    @property
    def is_divisible(self) -> bool:
        return self.is_indexed and all(stage.is_divisible for stage in self.inputs)

    @property
    def is_gathered(self) -> bool:
        return self.is_indexed and all(stage.is_gathered for stage in self.inputs)

    def part_at(self, epoch: int, position: int, part_of: PartOf) -> BatchPart:
        """From the dataset that has this place."""
        stage, place = self._which(position)
        return stage.part_at(epoch, place, part_of)

    def stream(self, epoch: int) -> Any:
        if self.inputs[0].count == INFINITE:
            return as_stream(self.inputs[0], epoch)
        return stream(lambda: every(as_stream(stage, epoch) for stage in self.inputs))

    def find_spec(self) -> Any:
        """Common to all.

        Raises:
            BatchError: If the datasets have elements of other structure, rank or dtype.
        """
        first, second = (stage.spec for stage in self.inputs)
        alike = elements.structure_of(first) == elements.structure_of(second) and all(
            one.dtype == other.dtype
            for one, other in zip(*map(elements.spec_leaves, (first, second)), strict=True)
        )
        if not alike:
            raise BatchError(
                f"concatenate needs elements of one structure and type; got {first} and {second}."
            )
        return elements.map_spec(_common, first, second)

    def find_example(self) -> elements.Element:
        return self.inputs[0].example


def _common(one: TensorSpec, other: TensorSpec) -> TensorSpec:
    if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
        return TensorSpec(None, one.dtype)
    pairs = zip(one.shape, other.shape, strict=True)
    return TensorSpec(tuple(a if a == b else None for a, b in pairs), one.dtype)
