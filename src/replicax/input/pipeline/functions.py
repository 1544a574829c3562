"""Steps that call a function of the user's: map, filter, interleave; and enumerate."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from replicax.core.errors import BatchError
from replicax.core.spec import TensorSpec
from replicax.input.pipeline import elements
from replicax.input.pipeline.stage import OneInput, ReadAhead, Rows, Stage, as_stream, open_pass
from replicax.input.pipeline.streams import interleaved, require_grain, stream
from replicax.input.source import INFINITE, UNKNOWN


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Map(OneInput):
    """A function of every element.

    Attributes:
        fn: The function.
        num_threads: How many threads call it; 0 for the consumer's own.
    """

    fn: Callable[..., Any]
    num_threads: int = 0

    def at(self, epoch: int, position: int) -> elements.Element:
        return self._apply(self.input.at(epoch, position))

    def stream(self, epoch: int) -> Any:
        mapped = as_stream(self.input, epoch).map(self._apply)
        if not self.num_threads:
            return mapped
        return require_grain().experimental.ThreadPrefetchIterDataset(
            mapped, prefetch_buffer_size=self.num_threads
        )

    def _apply(self, element: elements.Element) -> elements.Element:
        result = elements.call(self.fn, element)
        result = tuple(result) if isinstance(result, list) else result
        if result is None:
            raise BatchError(
                f"the function given to map, {_name(self.fn)}, returned None; expected the new "
                "element. Use filter to drop elements."
            )
        return elements.as_element(result, what=f"the result of {_name(self.fn)}")

    @property
    def read_ahead(self) -> ReadAhead:
        """The threads of this function, if elements are found by index."""
        if not self.is_indexed:
            return ReadAhead()
        return self.input.read_ahead.joined(ReadAhead(self.num_threads, self.num_threads))

    @property
    def makes_buffers(self) -> bool:
        """The function may hand out what it likes."""
        return False

    @property
    def rows(self) -> Rows:
        """As its input, if the example shows that the function keeps dim 0."""
        before = self.input.rows
        if before.size is None:
            return Rows(is_batch=None)
        shapes = [np.shape(leaf) for leaf in jax.tree_util.tree_leaves(self.example)]
        kept = all(shape[:1] == (self._example_rows(),) for shape in shapes)
        return before if kept else Rows(is_batch=None)

    def _example_rows(self) -> int:
        return np.shape(jax.tree_util.tree_leaves(self.input.example)[0])[0]

    def find_example(self) -> elements.Element:
        """The function of the input's example."""
        return self._apply(self.input.example)

    def find_spec(self) -> Any:
        """From the example; a dim is None if it has the size that a varying dim had in it."""
        varying = {
            (dim, size)
            for spec, leaf in zip(
                elements.spec_leaves(self.input.spec),
                jax.tree_util.tree_leaves(self.input.example),
                strict=True,
            )
            for dim, size in enumerate(np.shape(leaf))
            if spec.shape is None or spec.shape[dim] is None
        }

        def spec_of(leaf: Any) -> TensorSpec:
            shape = (None if pair in varying else pair[1] for pair in enumerate(np.shape(leaf)))
            return TensorSpec(tuple(shape), leaf.dtype)

        return jax.tree_util.tree_map(spec_of, self.example)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Filter(OneInput):
    """The elements for which a function is true.

    Attributes:
        predicate: The function.
    """

    predicate: Callable[..., Any]

    @property
    def is_indexed(self) -> bool:
        """Elements come one after another."""
        return False

    @property
    def count(self) -> int:
        return INFINITE if self.input.count == INFINITE else UNKNOWN

    def stream(self, epoch: int) -> Any:
        """Drops elements as they are read."""
        return as_stream(self.input, epoch).filter(self._passes)

    def _passes(self, element: elements.Element) -> bool:
        result = elements.call(self.predicate, element)
        answer = np.asarray(result)
        if answer.dtype != bool or answer.ndim:
            raise BatchError(
                f"the function given to filter, {_name(self.predicate)}, returned {result!r}; "
                "expected one boolean. Filter before batch, or write a comparison."
            )
        return bool(answer)

    def find_example(self) -> elements.Element:
        """The first element that passes: functions after this one may fail on the others."""
        with contextlib.closing(open_pass(self, 0)) as passing:
            for element in passing:
                return element
        return self.input.example


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Enumerate(OneInput):
    """Every element with its number.

    Attributes:
        start: The number of the first.
    """

    start: int = 0

    def at(self, epoch: int, position: int) -> elements.Element:
        """The number is the place."""
        return np.int64(self.start + position), self.input.at(epoch, position)

    def stream(self, epoch: int) -> Any:
        return as_stream(self.input, epoch).map_with_index(
            lambda index, element: (np.int64(self.start + index), element)
        )

    @property
    def rows(self) -> Rows:
        """A number is no batch."""
        return Rows(is_batch=False)

    @property
    def files(self) -> None:
        """Numbers would start again with every worker's files."""
        return None

    def find_spec(self) -> Any:
        """A number and the element."""
        return TensorSpec((), np.int64), self.input.spec

    def find_example(self) -> elements.Element:
        """A number and the element."""
        return np.int64(self.start), self.input.example


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Interleave(Stage):
    """The elements of the datasets that a function makes, in turns.

    Attributes:
        stage_of: The stage of the dataset that is read for an element.
        cycle_length: How many datasets are read in turns.
        block_length: How many elements are taken in a turn.
        read_ahead_size: How many elements of each dataset a thread reads ahead; 0 for none.
        names: The file names to keep, if the elements are file names and only some are wanted.
    """

    stage_of: Callable[[Any], Stage]
    cycle_length: int
    block_length: int
    read_ahead_size: int = 0
    names: tuple[str, ...] | None = None

    @property
    def is_indexed(self) -> bool:
        """Elements come one after another."""
        return False

    @property
    def count(self) -> int:
        return UNKNOWN

    def stream(self, epoch: int) -> Any:
        """Opens datasets as their turn comes."""

        def dataset_of(element: elements.Element) -> Any:
            dataset = as_stream(self.stage_of(element), epoch)
            if not self.read_ahead_size:
                return dataset
            return require_grain().experimental.ThreadPrefetchIterDataset(
                dataset, prefetch_buffer_size=self.read_ahead_size
            )

        def start() -> Iterator[elements.Element]:
            return interleaved(
                stream(lambda: self._wanted(epoch)),
                dataset_of,
                cycle_length=self.cycle_length,
                block_length=self.block_length,
            )

        return stream(start)

    def _wanted(self, epoch: int) -> Iterator[elements.Element]:
        left = None if self.names is None else collections.Counter(self.names)
        (inputs,) = self.inputs
        with contextlib.closing(open_pass(inputs, epoch)) as before:
            for element in before:
                if left is not None:
                    name = file_name(element)
                    if left[name] <= 0:
                        continue
                    left[name] -= 1
                yield element

    @property
    def files(self) -> tuple[str, ...] | None:
        """The elements of its input, if each is the name of the file that is read for it."""
        if self.input.count == INFINITE:
            return None
        example = self.input.example
        if not isinstance(example, np.ndarray) or example.dtype != object or example.ndim:
            return None
        if self.stage_of(example).files != (file_name(example),):
            return None
        return tuple(file_name(element) for element in self._wanted(epoch=0))

    def of_files(self, files: tuple[str, ...]) -> Stage:
        """The same, passing over the other files."""
        return dataclasses.replace(self, names=files)

    @property
    def rows(self) -> Rows:
        """As in the dataset of the example; the last batch of another may be smaller."""
        return dataclasses.replace(self._first.rows, is_uniform=False)

    def find_spec(self) -> Any:
        """As the dataset of the example."""
        return self._first.spec

    def find_example(self) -> elements.Element:
        """From the dataset of the example."""
        return self._first.example

    @functools.cached_property
    def _first(self) -> Stage:
        """The dataset of the example; where that reads files, the first one with an element."""
        first = self.stage_of(self.input.example)
        if first.files is None:
            return first
        with contextlib.closing(open_pass(self.input, epoch=0)) as before:
            return next(filter(_has_elements, map(self.stage_of, before)), first)


def _has_elements(stage: Stage) -> bool:
    with contextlib.closing(open_pass(stage, epoch=0)) as elements_of_it:
        return next(elements_of_it, None) is not None


def file_name(element: Any) -> str:
    """An element that is a string, as the name of a file."""
    return os.fsdecode(elements.outward(element))


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", None) or type(fn).__name__
