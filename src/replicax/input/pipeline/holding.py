"""Steps that hold elements: cache, prefetch; and the options that a pipeline carries."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from replicax.input.pipeline import elements
from replicax.input.pipeline.options import Options
from replicax.input.pipeline.stage import Choosing, ReadAhead, Stage, as_stream, open_pass
from replicax.input.pipeline.streams import stream


class Store:
    """The elements that a cache holds, shared by all passes."""

    def __init__(self) -> None:
        self.by_index: dict[int, elements.Element] = {}
        self.in_order: list[elements.Element] | None = None
        self.lock = threading.Lock()


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Cache(Choosing):
    """The elements of the first pass, computed once and kept in memory.

    Attributes:
        store: Where they are kept.
    """

    keeps_order = True
    store: Store = dataclasses.field(default_factory=Store)

    def build(self, epoch: int) -> Any:
        """Looks elements up; whatever the pass, they are those of pass 0."""
        import grain

        if not self.is_indexed:
            return stream(self._read)
        parent = self.input.build(0)

        def look_up(index: int) -> elements.Element:
            found = self.store.by_index.get(index)
            if found is None:
                found = elements.read_only(parent[index])
                self.store.by_index[index] = found
            return found

        return grain.MapDataset.range(len(parent)).map(look_up)

    def locate(self, epochs: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Those of the first pass; what is in arrays is cached already."""
        return np.zeros_like(epochs), positions

    def locate_one(self, epoch: int, position: int) -> tuple[int, int]:
        """Of the first pass."""
        return 0, position

    def _read(self) -> Iterator[elements.Element]:
        if self.store.in_order is not None:
            yield from self.store.in_order
            return
        seen: list[elements.Element] = []
        with contextlib.closing(open_pass(self.input, 0)) as produced:
            for element in produced:
                seen.append(elements.read_only(element))
                yield seen[-1]
        with self.store.lock:
            if self.store.in_order is None:
                self.store.in_order = seen

    @property
    def makes_buffers(self) -> bool:
        """They are held here."""
        return False

    def of_files(self, files: tuple[str, ...]) -> Stage:
        """A cache of its own."""
        return dataclasses.replace(super().of_files(files), store=Store())  # pyright: ignore


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Prefetch(Choosing):
    """Elements made ready ahead of time by a thread.

    Attributes:
        buffer_size: How many.
    """

    keeps_order = True
    buffer_size: int

    def build(self, epoch: int) -> Any:
        """Reads ahead; where there are indices, whoever opens the pass starts the threads."""
        import grain

        if self.is_indexed or not self.buffer_size:
            return self.input.build(epoch)
        return grain.experimental.ThreadPrefetchIterDataset(
            as_stream(self.input, epoch), prefetch_buffer_size=self.buffer_size
        )

    def locate(self, epochs: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same."""
        return epochs, positions

    def locate_one(self, epoch: int, position: int) -> tuple[int, int]:
        """The same."""
        return epoch, position

    @property
    def read_ahead(self) -> ReadAhead:
        """At least one thread."""
        if not self.is_indexed:
            return ReadAhead()
        return self.input.read_ahead.joined(ReadAhead(min(1, self.buffer_size), self.buffer_size))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class WithOptions(Choosing):
    """The same elements, with options attached.

    Attributes:
        options: The options.
    """

    keeps_order = True
    options: Options

    def build(self, epoch: int) -> Any:
        """As its input."""
        return self.input.build(epoch)

    def locate(self, epochs: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same."""
        return epochs, positions

    def locate_one(self, epoch: int, position: int) -> tuple[int, int]:
        """The same."""
        return epoch, position


def options_of(stage: Stage) -> Options:
    """All options attached to a pipeline, the last ones first."""
    merged = Options()
    for before in stage.inputs:
        merged = merged.merge(options_of(before))
    return merged.merge(stage.options) if isinstance(stage, WithOptions) else merged
