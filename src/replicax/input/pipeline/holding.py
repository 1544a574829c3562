"""Steps that hold elements: cache, prefetch; and the options that a pipeline carries."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

from replicax.input.pipeline import elements
from replicax.input.pipeline.options import Options
from replicax.input.pipeline.stage import Choosing, Places, ReadAhead, Stage, as_stream, open_pass
from replicax.input.pipeline.streams import require_grain, stream


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

    def at(self, epoch: int, position: int) -> elements.Element:
        """Looks it up; whatever the pass, it is that of pass 0."""
        found = self.store.by_index.get(position)
        if found is None:
            found = elements.read_only(self.input.at(0, position))
            self.store.by_index[position] = found
        return found

    def stream(self, epoch: int) -> Any:
        """Reads the elements, or what has been kept of them."""
        return stream(self._read)

    def locate(self, epochs: Places, positions: Places) -> tuple[Places, Places]:
        """Those of the first pass; what is in arrays is cached already."""
        return epochs * 0, positions

    @property
    def is_divisible(self) -> bool:
        """If nothing has to be computed again for another part."""
        return self.is_gathered

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

    def stream(self, epoch: int) -> Any:
        """Reads ahead; where there are indices, whoever opens the pass starts the threads."""
        dataset = as_stream(self.input, epoch)
        if not self.buffer_size:
            return dataset
        return require_grain().experimental.ThreadPrefetchIterDataset(
            dataset, prefetch_buffer_size=self.buffer_size
        )

    @property
    def read_ahead(self) -> ReadAhead:
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

    def stream(self, epoch: int) -> Any:
        return as_stream(self.input, epoch)


def options_of(stage: Stage) -> Options:
    """All options attached to a pipeline, the last ones first."""
    merged = Options()
    for before in stage.inputs:
        merged = merged.merge(options_of(before))
    return merged.merge(stage.options) if isinstance(stage, WithOptions) else merged
