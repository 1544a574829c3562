"""One step as it is for other batches than the one at hand: traced for each, compiled for few.

A step is traced anew for the batch that is asked for, with zeros in place of the examples; nothing
runs. The memory between its inputs and outputs needs a compiled program. There are a few, for the
first batches that are asked for and for the devices at hand; between their batches memory is a
straight line, beyond the largest it is proportional to the batch. `costs.scaling` makes
of a sample what another layout of replicas would do.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from replicax.core import nest
from replicax.core.errors import ReplicaxError
from replicax.costs.operations import Operations, read_operations
from replicax.costs.program import IN_PARTS, StepProgram, inspect_step
from replicax.engine.functions.function import Function, function
from replicax.engine.run import prepare
from replicax.strategies.base import Strategy
from replicax.values.distributed import PerReplica
from replicax.values.leaves import Leaf, leaf_kind

_MUCH = 8
"""In a small batch gradients need the most memory, in one so many times as large activations."""

_MOST_COMPILED = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """A step, traced for one batch.

    Attributes:
        batch: The examples of one replica.
        program: What is known of its program.
        operations: What one replica executes.
    """

    batch: int
    program: StepProgram
    operations: Operations


class SimulationError(ReplicaxError, ValueError):
    """A step that cannot be simulated; the message says why."""


class SampledStep:
    """A step that is traced for any batch.

    Attributes:
        batch: The examples of one replica at hand; 0 for a step without examples.
        notes: What could not be found out, for those who read the results.
    """

    def __init__(
        self, step: Callable[..., Any], args: Sequence[Any], strategy: Strategy | None
    ) -> None:
        self._function: Function[..., Any] = function(step)
        self._args = tuple(args)
        self._strategy = strategy
        leaves = nest.flatten(self._args)[0]
        sizes = [max(shape[0] for shape in leaf.shapes) for leaf in leaves if _has_examples(leaf)]
        self.batch: int = max(sizes, default=0)
        self.notes: list[str] = []
        self._samples: dict[int, Sample] = {}
        self._planned: dict[int, float] = {}  # bytes of temporaries, by batch
        self._takes_other_batches = True

    @functools.cached_property
    def at_hand(self) -> StepProgram:
        """The step with the batch at hand, compiled."""
        found = inspect_step(self._function, self._args, strategy=self._strategy)
        if found.num_replicas < 2:
            raise SimulationError(
                f"step {found.name!r} has {found.num_replicas} replica here, so its program does "
                "not say what replicas send each other. Simulate it under a strategy with two or "
                "more: call replicax.set_virtual_devices(2) at the start of the program, and "
                "create the variables under MirroredStrategy()."
            )
        return found

    @property
    def num_replicas(self) -> int:
        """How many replicas there are here."""
        return self.at_hand.num_replicas

    @functools.cached_property
    def stage(self) -> int:
        """What is split over the replicas here: the stage of ``Sharding``, or 0."""
        state = self.at_hand.state
        if any(one.layout == IN_PARTS and one.is_trainable for one in state):
            return 3
        if not any(one.layout == IN_PARTS for one in state):
            return 0
        kinds = {collective.kind for collective in self.at_hand.traced_collectives}
        return 2 if "reduce-scatter" in kinds else 1

    def at(self, batch: int) -> Sample:
        """The step with another batch; traced once for each.

        Args:
            batch: The examples of one replica.

        Returns:
            The sample.
        """
        if batch not in self._samples:
            self._samples[batch] = self._sample(batch, compiles=False)
        return self._samples[batch]

    def temporaries(self, batch: int, *, compiles: bool = True) -> float:
        """The memory of one device between the inputs and outputs of the step, with another batch.

        Args:
            batch: The examples of one replica.
            compiles: Whether the step may be compiled for that batch, if it was not for many yet.

        Returns:
            Bytes.
        """
        if not self.batch:
            return float(self.at_hand.memory.temporaries or 0)
        if not self._planned:
            self._planned[self.batch] = float(self.at_hand.memory.temporaries or 0)
        if batch not in self._planned and not (compiles and self._plan(batch)):
            largest = max(self._planned)
            if batch > largest and largest < _MUCH * self.batch and self._plan(_MUCH * self.batch):
                largest = _MUCH * self.batch
            return _between(self._planned, batch)
        return self._planned[batch]

    def _plan(self, batch: int) -> bool:
        """Compiles the step for a batch, if it can be and was not for many; says whether it is."""
        if len(self._planned) >= _MOST_COMPILED or not self._takes_other_batches:
            return False
        try:
            memory = self._sample(batch, compiles=True).program.memory
        except SimulationError:
            self._takes_other_batches = False
            self.notes.append(
                f"the step cannot be traced with {batch} examples a replica, so its memory is "
                "taken to be proportional to the batch"
            )
            return False
        self._planned[batch] = float(memory.temporaries or 0)
        return True

    def _sample(self, batch: int, *, compiles: bool) -> Sample:
        if batch == self.batch:
            program, args, fn = self.at_hand, self._args, self._function
        else:
            args = nest.map_leaves(lambda leaf: _resized(leaf, self.batch, batch), self._args)
            # One of its own: the step's own programs, and how often it was traced, stay as they are
            fn = self._function._with_function(self._function.python_function)
            try:
                program = inspect_step(fn, args, strategy=self._strategy, compiles=compiles)
            except Exception as error:
                raise SimulationError(
                    f"step {self.at_hand.name!r} has {self.batch} examples a replica here, and "
                    f"cannot be traced with {batch}: {error}. Pass batch='per_replica', or a step "
                    "that takes any number of examples."
                ) from error
        prepared = prepare(self._strategy, fn, args, {})
        jaxpr = prepared.program.launcher.traced(prepared.arrays).jaxpr
        return Sample(batch, program, read_operations(jaxpr))


def _between(points: dict[int, float], batch: int) -> float:
    """The value for `batch` on straight lines; beyond the last point it follows the batch."""
    sizes = sorted(points)
    if batch >= sizes[-1]:
        return points[sizes[-1]] * batch / sizes[-1]
    if len(sizes) == 1:
        return points[sizes[0]] * batch / sizes[0]
    high = next((index for index, size in enumerate(sizes) if size > batch and index), 1)
    low_size, high_size = sizes[high - 1], sizes[high]
    slope = (points[high_size] - points[low_size]) / (high_size - low_size)
    return max(points[low_size] + slope * (batch - low_size), 0.0)


def _has_examples(leaf: Any) -> bool:
    is_array = leaf_kind(leaf) is Leaf.PER_REPLICA and bool(leaf.shapes)
    return is_array and all(len(shape) > 0 for shape in leaf.shapes)


def _resized(leaf: Any, batch: int, other: int) -> Any:
    """A per-replica argument with so many examples, all zeros; anything else as it is."""
    if not _has_examples(leaf) or max(shape[0] for shape in leaf.shapes) != batch:
        return leaf
    zeros = np.zeros((other, *leaf.shapes[0][1:]), leaf.dtype)
    return PerReplica(leaf.mesh, components=[zeros] * leaf.mesh.num_replicas)
