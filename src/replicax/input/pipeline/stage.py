"""What a step of a pipeline is: a description of which Grain dataset a pass reads.

A `Dataset` holds one `Stage`, which holds the stages before it. Nothing is read and no
thread started before `build` is called and its Grain dataset iterated. Stages are
immutable, so a pipeline can be shared, extended twice, or rebuilt over other files.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from typing import Any, ClassVar

import numpy as np

from replicax.input.pipeline import elements
from replicax.input.pipeline.streams import picked
from replicax.input.source import INFINITE, UNKNOWN

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
        import grain

        return grain.ReadOptions(
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

    @abc.abstractmethod
    def build(self, epoch: int) -> Any:
        """The Grain dataset of one pass: a `MapDataset` if `is_indexed`, else an `IterDataset`.

        Args:
            epoch: Which pass it is, from 0. Index ``i`` of a `MapDataset` is element
                ``i % len`` of pass ``epoch + i // len``.
        """

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

    def gather(self, epochs: np.ndarray, positions: np.ndarray) -> elements.Element:
        """A batch of some elements, in buffers of its own, if `is_gatherable`.

        Args:
            epochs: Which pass each is an element of; it wraps around at 2**64.
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
        """As its input."""
        return self.input.is_indexed

    @property
    def count(self) -> int:
        """As its input."""
        return self.input.count

    def find_spec(self) -> Any:
        """As its input."""
        return self.input.spec

    def find_example(self) -> elements.Element:
        """As its input."""
        return self.input.example

    @property
    def rows(self) -> Rows:
        """As its input."""
        return self.input.rows

    @property
    def makes_buffers(self) -> bool:
        """As its input."""
        return self.input.makes_buffers

    @property
    def files(self) -> tuple[str, ...] | None:
        """As its input."""
        return self.input.files


class Choosing(OneInput):
    """A stage whose elements are elements of its input, chosen by place alone.

    Attributes:
        keeps_order: Whether elements of one pass of the input keep their order.
    """

    keeps_order: ClassVar[bool] = False

    @abc.abstractmethod
    def locate(self, epochs: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which elements of the input these elements are.

        Args:
            epochs: The passes, uint64.
            positions: The places within the passes.

        Returns:
            Passes and places of the input.
        """

    def locate_one(self, epoch: int, position: int) -> tuple[int, int]:
        """Which element of the input one element is; what `locate` says of many."""
        epochs, positions = self.locate(np.array([epoch % 2**64], np.uint64), np.array([position]))
        return int(epochs[0]), int(positions[0])

    def view(self, epoch: int, start: int, stop: int) -> elements.Element | None:
        """The input's, if they follow one another there."""
        if not self.keeps_order:
            return None
        passes, first = self.locate_one(epoch, start)
        end = first + stop - start
        if self.locate_one(epoch, stop - 1) != (passes, end - 1):
            return None
        return self.input.view(passes, first, end)

    @property
    def is_gatherable(self) -> bool:
        """If its input is."""
        return self.is_indexed and self.input.is_gatherable

    def gather(self, epochs: np.ndarray, positions: np.ndarray) -> elements.Element:
        """From its input."""
        return self.input.gather(*self.locate(epochs, positions))


def as_stream(stage: Stage, epoch: int) -> Any:
    """The `grain.IterDataset` of one pass."""
    dataset = stage.build(epoch)
    return dataset.to_iter_dataset(stage.read_ahead.read_options) if stage.is_indexed else dataset


def open_pass(stage: Stage, epoch: int, start: int = 0) -> Any:
    """The elements of one pass, an iterator whose `close` ends its threads.

    Args:
        stage: The last step of the pipeline.
        epoch: Which pass.
        start: The first element; where there are indices, those before it are not computed.
    """
    dataset = stage.build(epoch)
    if stage.is_indexed:
        dataset = dataset.slice(slice(start, None)) if start else dataset
        return iter(dataset.to_iter_dataset(stage.read_ahead.read_options))
    return picked(dataset, start) if start else iter(dataset)


def scaled(count: int, how: Any) -> int:
    """`how` of a known count; an unknown or endless one stays what it is."""
    return count if count in (INFINITE, UNKNOWN) else how(count)
