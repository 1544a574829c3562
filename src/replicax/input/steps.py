"""What the replicas of one worker take in one step, while it is still on the host.

A `StepReader` turns pipelines into such steps and is where the two ways of
distributing differ: `input.global_batches` divides one pipeline of global
batches, `input.from_function` has pipelines of per-replica batches. What comes
after, placing and handing out, is the same for both.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from replicax.core import nest
from replicax.core.spec import TensorSpec
from replicax.input.source import UNKNOWN

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """One leaf of a step: what this worker's replicas have of it.

    Attributes:
        shapes: The shape of the part of every replica, of all workers. Where another
            worker reads a stream of its own, its parts are taken to be full.
        local: Which of them this worker feeds.
        whole: The parts of this worker, one after the other in one array, or None.
        parts: The same as one array per replica, where they do not lie together.
    """

    shapes: tuple[Shape, ...]
    local: range
    whole: Any = None
    parts: tuple[Any, ...] | None = None

    @property
    def local_shapes(self) -> tuple[Shape, ...]:
        """The shapes of this worker's parts."""
        return self.shapes[self.local.start : self.local.stop]

    def local_parts(self) -> tuple[Any, ...]:
        """One array for each replica of this worker."""
        if self.parts is not None:
            return self.parts
        parts, start = [], 0
        for shape in self.local_shapes:
            parts.append(self.whole[start : start + shape[0]])
            start += shape[0]
        return tuple(parts)


def divided(local: Any, sizes: tuple[int, ...], replicas: range) -> Share:
    """A leaf whose local examples are `local`, divided by the `sizes` of all replicas."""
    local = np.asarray(local)  # a JAX array would compile a program for every slice
    return Share(_shapes_of(sizes, local.shape[1:]), replicas, local)


@functools.lru_cache(maxsize=1024)
def _shapes_of(sizes: tuple[int, ...], rest: Shape) -> tuple[Shape, ...]:
    return tuple((size, *rest) for size in sizes)


@dataclasses.dataclass(frozen=True, slots=True)
class HostStep:
    """A nest of shares.

    Attributes:
        structure: How the leaves are nested.
        shares: The leaves.
    """

    structure: nest.Structure
    shares: list[Share]


@dataclasses.dataclass(frozen=True, slots=True)
class LeafType:
    """What all parts of a leaf have in common, as far as one step can tell.

    Attributes:
        shape: The shape of a part; dim 0 counts examples if there is any dim.
        dtype: The dtype of the part.
    """

    shape: Shape
    dtype: np.dtype


@dataclasses.dataclass(frozen=True, slots=True)
class StepType:
    """The types of the leaves of a step, and how they are nested."""

    structure: nest.Structure
    leaves: tuple[LeafType, ...]

    @classmethod
    def of(cls, step: HostStep) -> StepType:
        """The type of a step that was read."""
        leaves = []
        for share in step.shares:
            array = share.whole if share.parts is None else share.parts[0]
            leaves.append(LeafType(share.local_shapes[0], array.dtype))
        return cls(step.structure, tuple(leaves))

    @property
    def can_be_empty(self) -> bool:
        """Whether a replica can take no example at all: every leaf has a batch dim."""
        return all(leaf.shape for leaf in self.leaves)

    def spec(self) -> Any:
        """A nest of `TensorSpec` of a part, of any number of examples."""
        return nest.unflatten(
            self.structure,
            [
                TensorSpec((None, *leaf.shape[1:]) if leaf.shape else (), leaf.dtype)
                for leaf in self.leaves
            ],
        )


class StepReader(abc.ABC):
    """Which examples the replicas of this worker take, step by step.

    Attributes:
        description: What is read, for messages.
        owns_batches: Whether the arrays may be adopted by a device without a copy.
    """

    description: str = "a pipeline"
    owns_batches: bool = False

    @property
    def is_shared(self) -> bool:
        """Whether every worker knows the steps of all, so that there is nothing to agree on."""
        return False

    @property
    def element_spec(self) -> Any | None:
        """A nest of specs of what a step gives, or None if only reading can tell."""
        return None

    @abc.abstractmethod
    def spec_of(self, step_type: StepType) -> Any:
        """The specs, after a step was read."""

    @property
    def cardinality(self) -> int:
        """Steps in one pass, INFINITE or UNKNOWN."""
        return UNKNOWN

    @abc.abstractmethod
    def open(self, *, epoch: int, start: int) -> Iterator[HostStep]:
        """Reads one pass, from step `start` on; closing the iterator closes what it opened."""

    @abc.abstractmethod
    def empty_step(self, step_type: StepType) -> HostStep:
        """A step without examples, for a worker that has none left while others do."""

    def expected_type(self) -> StepType | None:
        """The type of a step as far as it is known without reading."""
        return None

    def state(self) -> dict[str, Any]:
        """What a position means here, beside its number; plain values for JSON."""
        return {}

    @abc.abstractmethod
    def adopt(self, state: Mapping[str, Any]) -> None:
        """Prepares to continue from a saved state.

        Raises:
            InputStateError: If a position there is another one here.
        """


def close(items: Any) -> None:
    """Closes an iterator, if it is one that can be closed."""
    closing = getattr(items, "close", None)
    if closing is not None:
        closing()


@contextlib.contextmanager
def opened(items: Iterator[Any]) -> Iterator[Iterator[Any]]:
    """The iterator, which is closed afterwards."""
    try:
        yield items
    finally:
        close(items)
