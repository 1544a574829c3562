"""`DistributedIterator`: one pass over a distributed dataset, and where it stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from replicax.core import nest, recording
from replicax.core.errors import ContextError, InputStateError, OutOfRangeError
from replicax.engine.contexts import stack
from replicax.engine.protocols import HostIterable
from replicax.engine.trace.host_loop import enter_host_code
from replicax.input import agreement
from replicax.input.prefetch import Preparing
from replicax.input.steps import StepReader
from replicax.input.topology import InputTopology
from replicax.jax_internals.arrays import ConcreteArray
from replicax.values.distributed import PerReplica

STATE_VERSION = 1


class Passes(Protocol):
    """What an iterator needs of its dataset."""

    _reading: StepReader
    _topology: InputTopology

    @property
    def element_spec(self) -> Any:
        """The specs of the values."""
        ...

    def _new_epoch(self) -> int:
        """The number of a pass that begins."""
        ...

    def _continue_after(self, epoch: int) -> None:
        """Gives the next pass the number after `epoch`."""
        ...

    def _open(self, epoch: int, start: int) -> Preparing:
        """Begins to read a pass."""
        ...

    def _can_be_empty(self) -> bool:
        """Whether a step without examples is possible."""
        ...

    def _knows_type(self) -> bool:
        """Whether it is known what a step looks like."""
        ...

    def _empty_value(self) -> Any:
        """A step without examples."""
        ...


class DistributedIterator(HostIterable, Iterator[Any]):
    """Gives the per-replica values of one pass over a `DistributedDataset`.

    Made by ``iter(dataset)``. Its position is how many steps were taken from it,
    whatever has been read ahead, and can be saved and restored.

    Example:
        >>> import numpy as np
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> dataset = strategy.distribute_dataset(np.arange(6), batch_size=4)
        >>> iterator = iter(dataset)
        >>> next(iterator)
        PerReplica:{
          0: Array([0, 1], dtype=int32),
          1: Array([2, 3], dtype=int32)
        }
        >>> iterator.get_state()
        {'version': 1, 'epoch': 0, 'position': 1}
    """

    def __init__(self, dataset: Passes, epoch: int) -> None:
        """A pass over `dataset`; nothing is read before the first value is asked for."""
        self._dataset = dataset
        self._epoch = epoch
        self._position = 0
        self._preparing: Preparing | None = None
        self._has_ended = False
        self._counted: tuple[Any, int] = (None, 0)  # shapes, and how many examples these are

    def __repr__(self) -> str:
        return (
            f"<DistributedIterator at step {self._position} of pass {self._epoch} over "
            f"{self._dataset!r}>"
        )

    @property
    def element_spec(self) -> Any:
        """The specs of the values, as `DistributedDataset.element_spec`."""
        return self._dataset.element_spec

    def __iter__(self) -> DistributedIterator:
        return self

    def __next__(self) -> Any:
        told = recording.recorder
        if told is not None and (before := told.enter(recording.INPUT)) is not None:
            num_examples = None
            try:
                batch = self.__next__()
                num_examples = self._num_examples(batch)
            finally:
                told.leave_input(before, num_examples)
            return batch
        require_host_code("a DistributedIterator", self._dataset._topology.num_replicas)
        if self._has_ended:
            raise StopIteration
        values = self._next_if_any()
        if self._dataset._topology.exchange is not None and not self._dataset._reading.is_shared:
            values = self._agreed(values)
        if not values:
            self.close()
            raise StopIteration
        self._position += 1
        return values[0]

    def _num_examples(self, batch: Any) -> int:
        """How many examples all replicas have of a step; this worker's if only these are known."""
        first = batch
        while isinstance(first, tuple | list) and first:
            first = first[0]
        kind = type(first)
        if kind is not PerReplica and kind is not ConcreteArray:
            leaves, _ = nest.flatten(first)
            first = leaves[0] if leaves else np.empty(0)
        if not isinstance(first, PerReplica):
            shape = np.shape(first)
            return shape[0] if shape else 1
        shapes = first._shapes
        if shapes is None:
            shapes = tuple(map(np.shape, first.values))
        known, count = self._counted
        if shapes is not known:  # steps that are alike share them
            count = sum(shape[0] if shape else 1 for shape in shapes)
            self._counted = shapes, count
        return count

    def _next_if_any(self) -> list[Any]:
        """The next value in a list, which is empty at the end."""
        try:
            if self._preparing is None:
                self._preparing = self._dataset._open(self._epoch, self._position)
            return [next(self._preparing)]
        except StopIteration:
            return []
        except BaseException:
            # Whoever asks again starts at the same step, with a new pass.
            self._drop_pass()
            raise

    def _agreed(self, values: list[Any]) -> list[Any]:
        """The next value as all workers together know it, in a list; empty at the end of all.

        A worker that has none left goes on with empty ones while others have some.
        """
        exchange = self._dataset._topology.exchange
        assert exchange is not None
        can_be_empty = self._dataset._can_be_empty()
        has_data = [can_be_empty, bool(values)]
        if not values and can_be_empty and self._dataset._knows_type():
            values = [self._dataset._empty_value()]
        known = [agreement.shapes_here(value) for value in values]
        rows = exchange("the next step of a dataset", [has_data, known])
        data = [has for (_, has), _ in rows]
        if not (any(data) if all(can for (can, _), _ in rows) else all(data)):
            return []
        if not values:
            values = [self._dataset._empty_value()]  # raises: nothing tells what it looks like
        return [agreement.with_shapes(values[0], [known[0] for _, known in rows])]

    def _drop_pass(self) -> None:
        preparing, self._preparing = self._preparing, None
        if preparing is not None:
            preparing.close()

    def close(self) -> None:
        """Ends the pass, and the thread that reads ahead for it."""
        self._has_ended = True
        self._drop_pass()

    def next(self) -> Any:
        """The same as ``next(iterator)``."""
        return self.__next__()

    def get_next(self) -> Any:
        """The next value.

        Returns:
            What ``next(iterator)`` gives.

        Raises:
            OutOfRangeError: If there is none.
        """
        try:
            return self.__next__()
        except StopIteration:
            raise OutOfRangeError(
                f"the iterator has ended, after {self._position} steps. Make a new one for every "
                "epoch: iter(dataset)."
            ) from None

    def get_next_as_optional(self) -> Optional:
        """The next value, or none."""
        try:
            return Optional((self.__next__(),))
        except StopIteration:
            return Optional(())

    def initialize(self) -> None:
        """Starts over, with a new pass; what ``tf.compat.v1`` iterators are told first."""
        self._drop_pass()
        self._epoch = self._dataset._new_epoch()
        self._position = 0
        self._has_ended = False

    # -- state -------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Where the iterator stands: a small dict for JSON.

        Batches that were read ahead count as not taken.

        Returns:
            The state, for `set_state`.
        """
        return {
            "version": STATE_VERSION,
            "epoch": self._epoch,
            "position": self._position,
            **self._dataset._reading.state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues where an iterator stood when it gave `state`.

        Passes that are begun later follow it, so that the whole run continues.

        Args:
            state: What `get_state` returned, in this process or another; the number
                of workers and replicas may be different, where all share every batch.

        Raises:
            InputStateError: If it is no such state, or its position means nothing here.
        """
        epoch, position = _parsed(state)
        self._dataset._reading.adopt(state)
        self._drop_pass()
        self._epoch, self._position = epoch, position
        self._has_ended = False
        self._dataset._continue_after(epoch)


def _parsed(state: Any) -> tuple[int, int]:
    if not isinstance(state, Mapping):
        raise InputStateError(
            f"set_state got {state!r}; expected the dict that get_state returned."
        )
    if state.get("version") != STATE_VERSION:
        raise InputStateError(
            f"set_state got a state of version {state.get('version')!r}; this release reads "
            f"version {STATE_VERSION}: {dict(state)!r}."
        )
    epoch, position = state.get("epoch"), state.get("position")
    if type(epoch) is not int or type(position) is not int or epoch < 0 or position < 0:
        raise InputStateError(
            f"set_state got {dict(state)!r}; expected epoch and position to be ints, 0 or more."
        )
    return epoch, position


def require_host_code(what: str, num_replicas: int) -> None:
    """Called before input is handed out: it is for code that speaks for all replicas.

    Raises:
        HostLoopRequired: In the trace of a ``function``, which then starts over.
        ContextError: In the function of one of several replicas.
    """
    enter_host_code(what)
    entry = stack.top()
    if entry is not None and entry.mode is stack.Mode.REPLICA and num_replicas > 1:
        raise ContextError(
            f"{what} was iterated inside {stack.describe()}. Iterate outside, and pass each "
            "element through the args of run."
        )


class Optional:
    """A value that may be missing; from `DistributedIterator.get_next_as_optional`."""

    __slots__ = ("_values",)

    def __init__(self, values: tuple[Any, ...]) -> None:
        """Holds one value, or none."""
        self._values = values

    def __repr__(self) -> str:
        return f"Optional({self._values[0]!r})" if self._values else "Optional()"

    def has_value(self) -> bool:
        """Whether there is a value."""
        return bool(self._values)

    def get_value(self) -> Any:
        """The value.

        Returns:
            What ``next(iterator)`` gave.

        Raises:
            OutOfRangeError: If there is none.
        """
        if not self._values:
            raise OutOfRangeError(
                "the optional has no value, because the iterator had ended. Ask has_value() first."
            )
        return self._values[0]
