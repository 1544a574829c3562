"""What a step of a pipeline is: where its elements are, or how they are read.

A `Dataset` holds one `Stage`, which holds the stages before it. If any element can be computed
without the others, a stage says how (`at`); from arrays in memory it takes many at once
(`gather`). Otherwise it says which stream of Grain's reads a pass (`stream`). Threads are Grain's
too. Nothing is read and no thread started before a pass is opened. Stages are immutable, so a
pipeline can be shared, extended twice, or rebuilt over other files.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, TypeVar

import numpy as np

from replicax.input.pipeline import elements
from replicax.input.pipeline.streams import picked, require_grain
from replicax.input.source import INFINITE, UNKNOWN, BatchPart, PartOf

Places = TypeVar("Places", int, np.ndarray)

ENDLESS_LENGTH = 2**52
"""What counts as a length without end: Grain divides lengths as floats, which are exact so far."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReadAhead:
    """How far a pipeline runs ahead of its consumer.

    Attributes:
        num_threads: How many threads of Grain compute elements at a time.
        buffer_size: How many elements are ready or being computed.
    """

    num_threads: int = 0
    buffer_size: int = 0

    def joined(self, other: ReadAhead) -> ReadAhead:
        """What satisfies both."""
        return ReadAhead(
            max(self.num_threads, other.num_threads), max(self.buffer_size, other.buffer_size)
        )

    @property
    def read_options(self) -> Any:
        """The same as `grain.ReadOptions`; no thread if nothing was asked for."""
        return require_grain().ReadOptions(
            num_threads=self.num_threads, prefetch_buffer_size=self.buffer_size
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """What is known about dim 0 of the elements.

    Attributes:
        is_batch: Whether dim 0 counts examples; None if only the elements can tell.
        size: How many examples a full batch has, if known.
        is_uniform: Whether all elements are known to have the same dim 0.
    """

    is_batch: bool | None
    size: int | None = None
    is_uniform: bool = False


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Stage(abc.ABC):
    """One step of a pipeline, with the steps before it.

    Attributes:
        inputs: The stages whose elements this one reads.
    """

    inputs: tuple[Stage, ...] = ()

    @property
    def input(self) -> Stage:
        """The only input."""
        (only,) = self.inputs
        return only

    def at(self, epoch: int, position: int) -> elements.Element:
        """One element, if `is_indexed`.

        Args:
            epoch: Which pass it is an element of, from 0.
            position: Its place in that pass.
        """
        raise NotImplementedError(f"{type(self).__name__} is not indexed.")

    def stream(self, epoch: int) -> Any:
        """The `grain.IterDataset` of one pass, if not `is_indexed`."""
        raise NotImplementedError(f"{type(self).__name__} is indexed.")

    @property
    @abc.abstractmethod
    def is_indexed(self) -> bool:
        """Whether any element can be computed without the others."""

    @property
    @abc.abstractmethod
    def count(self) -> int:
        """Elements in a pass, `INFINITE` or `UNKNOWN`."""

    @functools.cached_property
    def spec(self) -> Any:
        """A nest of `TensorSpec`; None for a dim whose size varies or is not known."""
        return self.find_spec()

    @functools.cached_property
    def example(self) -> elements.Element:
        """An element such as the pipeline gives, made from one element of the source."""
        return self.find_example()

    @abc.abstractmethod
    def find_spec(self) -> Any:
        """Computes `spec`, which is then kept."""

    @abc.abstractmethod
    def find_example(self) -> elements.Element:
        """Computes `example`, which is then kept."""

    @property
    def rows(self) -> Rows:
        """What is known about dim 0 of the elements."""
        return Rows(is_batch=None)

    @property
    def makes_buffers(self) -> bool:
        """Whether every element is in buffers of its own, which nobody else holds."""
        return False

    @property
    def is_gatherable(self) -> bool:
        """Whether many elements can be taken out of arrays at once."""
        return False

    @property
    def is_divisible(self) -> bool:
        """Whether a part of an element, which is a batch, can be computed by itself."""
        return False

    def part_at(self, epoch: int, position: int, part_of: PartOf) -> BatchPart:
        """Some examples of one batch, if `is_divisible`.

        They may be read-only parts of arrays that never change.

        Args:
            epoch: The pass.
            position: The batch.
            part_of: Which of its examples are wanted.
        """
        raise NotImplementedError(f"{type(self).__name__} is not divisible.")

    @property
    def is_gathered(self) -> bool:
        """Whether elements are batches that are taken out of arrays, without any function."""
        return False

    def gather(self, epochs: np.ndarray, positions: np.ndarray) -> elements.Element:
        """A batch of some elements, in buffers of its own, if `is_gatherable`.

        Args:
            epochs: Which pass each is an element of, modulo 2**64.
            positions: Its place in that pass.
        """
        raise NotImplementedError(f"{type(self).__name__} is not gatherable.")

    def view(self, epoch: int, start: int, stop: int) -> elements.Element | None:
        """A batch of consecutive elements as parts of arrays that never change, read-only.

        Args:
            epoch: The pass.
            start: The place of the first.
            stop: The end; at least one after `start`.

        Returns:
            None if they do not lie together in such arrays: then they have to be gathered.
        """
        return None

    @property
    def read_ahead(self) -> ReadAhead:
        """What was asked for since the pipeline last became a stream."""
        if not self.is_indexed:
            return ReadAhead()
        return functools.reduce(ReadAhead.joined, (i.read_ahead for i in self.inputs), ReadAhead())

    @property
    def files(self) -> tuple[str, ...] | None:
        """The files that can be divided among workers; None if dividing them is not meaningful."""
        return None

    def of_files(self, files: tuple[str, ...]) -> Stage:
        """The same over these of its `files` only."""
        return dataclasses.replace(self, inputs=tuple(i.of_files(files) for i in self.inputs))


class OneInput(Stage):
    """A stage with one input, whose elements it hands on unless a subclass says otherwise."""

    @property
    def is_indexed(self) -> bool:
        return self.input.is_indexed

    @property
    def count(self) -> int:
        return self.input.count

    def find_spec(self) -> Any:
        return self.input.spec

    def find_example(self) -> elements.Element:
        return self.input.example

    @property
    def rows(self) -> Rows:
        return self.input.rows

    @property
    def makes_buffers(self) -> bool:
        return self.input.makes_buffers

    @property
    def files(self) -> tuple[str, ...] | None:
        return self.input.files


class Choosing(OneInput):
    """A stage whose elements are elements of its input, chosen by place alone.

    Attributes:
        keeps_order: Whether elements of one pass of the input keep their order.
    """

    keeps_order: ClassVar[bool] = False

    def locate(self, epochs: Places, positions: Places) -> tuple[Places, Places]:
        """Which elements of the input these elements are: the same ones, here.

        Args:
            epochs: The passes; a number, or an array of them modulo 2**64.
            positions: The places within the passes, alike.

        Returns:
            Passes and places of the input.
        """
        return epochs, positions

    def at(self, epoch: int, position: int) -> elements.Element:
        return self.input.at(*self.locate(epoch, position))

    @property
    def is_divisible(self) -> bool:
        return self.is_indexed and self.input.is_divisible

    @property
    def is_gathered(self) -> bool:
        return self.is_indexed and self.input.is_gathered

    def part_at(self, epoch: int, position: int, part_of: PartOf) -> BatchPart:
        return self.input.part_at(*self.locate(epoch, position), part_of)

    def view(self, epoch: int, start: int, stop: int) -> elements.Element | None:
        """The input's, if they follow one another there."""
        if not self.keeps_order:
            return None
        passes, first = self.locate(epoch, start)
        end = first + stop - start
        if self.locate(epoch, stop - 1) != (passes, end - 1):
            return None
        return self.input.view(passes, first, end)

    @property
    def is_gatherable(self) -> bool:
        return self.is_indexed and self.input.is_gatherable

    def gather(self, epochs: np.ndarray, positions: np.ndarray) -> elements.Element:
        return self.input.gather(*self.locate(epochs, positions))


class InOrder(Iterator[Any]):
    """What a function gives for one place after another; can be closed at any time."""

    def __init__(self, at: Callable[[int], Any], places: Iterable[int]) -> None:
        self._at = at
        self._places = iter(places)

    def __next__(self) -> Any:
        return self._at(next(self._places))

    def close(self) -> None:
        """Gives nothing more."""
        self._places = iter(())


@dataclasses.dataclass(frozen=True, slots=True)
class _ByIndex:
    """Random access to what a function gives for each place, as Grain wants it."""

    at: Callable[[int], Any]
    places: range

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Any:
        return self.at(self.places[index])


def read_in_order(stage: Stage, at: Callable[[int], Any], start: int = 0) -> Any:
    """What `at` gives for one place of `stage` after another; threads of Grain call it if asked to.

    Args:
        stage: Says how many places there are, and how far to read ahead.
        at: Called with each place.
        start: The first place.
    """
    places = range(start, ENDLESS_LENGTH if stage.count == INFINITE else stage.count)
    if not stage.read_ahead.buffer_size:
        return InOrder(at, places)
    return iter(_threaded(at, places, stage.read_ahead))


def _threaded(at: Callable[[int], Any], places: range, read_ahead: ReadAhead) -> Any:
    found = require_grain().MapDataset.source(_ByIndex(at, places))
    return found.to_iter_dataset(read_ahead.read_options)


def as_stream(stage: Stage, epoch: int) -> Any:
    """The `grain.IterDataset` of one pass."""
    if not stage.is_indexed:
        return stage.stream(epoch)
    places = range(ENDLESS_LENGTH if stage.count == INFINITE else stage.count)
    return _threaded(functools.partial(stage.at, epoch), places, stage.read_ahead)


def open_pass(stage: Stage, epoch: int, start: int = 0) -> Any:
    """The elements of one pass, an iterator whose `close` ends its threads.

    Args:
        stage: The last step of the pipeline.
        epoch: Which pass.
        start: The first element; where there are indices, those before it are not computed.
    """
    if stage.is_indexed:
        return read_in_order(stage, functools.partial(stage.at, epoch), start)
    dataset = stage.stream(epoch)
    return picked(dataset, start) if start else iter(dataset)


def scaled(count: int, how: Any) -> int:
    """`how` of a known count; an unknown or endless one stays what it is."""
    return count if count in (INFINITE, UNKNOWN) else how(count)
