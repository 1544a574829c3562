"""`DistributedDataset`: gives every replica its part of each batch, pass after pass."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from replicax.backend.mesh import ReplicaMesh
from replicax.core.errors import BatchError, OneShotError
from replicax.core.options import InputOptions
from replicax.engine.protocols import HostIterable
from replicax.input import steps
from replicax.input.at_exit import close_at_exit
from replicax.input.element_spec import dtypes_of, shapes_of
from replicax.input.iterator import DistributedIterator, require_host_code
from replicax.input.placing import Placer
from replicax.input.prefetch import Preparing, prepared
from replicax.input.source import INFINITE, UNKNOWN
from replicax.input.steps import HostStep, StepReader, StepType
from replicax.input.topology import InputTopology

_TRANSFORMATIONS = (
    "apply as_numpy_iterator batch bucket_by_sequence_length cache choose_from_datasets "
    "concatenate counter enumerate filter flat_map from_generator from_tensor_slices "
    "from_tensors get_single_element group_by_window ignore_errors interleave list_files "
    "load map padded_batch prefetch ragged_batch random range rebatch rejection_resample "
    "repeat sample_from_datasets save scan shard shuffle skip snapshot sparse_batch take "
    "take_while unbatch unique window with_options zip "
)


class _Peeked:
    """A pass that was begun to learn what its steps look like, for whoever iterates first."""

    def __init__(self, epoch: int, items: Iterator[HostStep]) -> None:
        self.epoch = epoch
        self._items = items
        self.first = list(itertools.islice(items, 1))
        close_at_exit(self)

    def steps_from(self, start: int) -> Iterator[HostStep]:
        """The steps of the pass, without the first `start`."""
        try:
            yield from itertools.islice(self._all(), start, None)
        finally:
            self.close()

    def _all(self) -> Iterator[HostStep]:
        while self.first:  # so that a step is not held while the rest is read
            yield self.first.pop()
        yield from self._items

    def close(self) -> None:
        """Closes the pass."""
        steps.close(self._items)


class DistributedDataset(HostIterable, Iterable[Any]):
    """Per-replica values, one for each step, made from one or more pipelines.

    Every ``iter`` of it is a new pass over the data, and passes do not disturb each
    other. Made by ``Strategy.distribute_dataset`` and
    ``Strategy.distribute_datasets_from_function``.

    Example:
        >>> import numpy as np
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> dataset = strategy.distribute_dataset(np.arange(6.0), batch_size=4)
        >>> [float(strategy.reduce("SUM", batch, axis=0)) for batch in dataset]
        [6.0, 9.0]
        >>> len(dataset)
        2
    """

    def __init__(
        self, reading: StepReader, mesh: ReplicaMesh, topology: InputTopology, options: InputOptions
    ) -> None:
        """Prepares to hand out what `reading` reads to the replicas on `mesh`."""
        self._reading = reading
        self._topology = topology
        self._buffer_size = options.experimental_per_replica_buffer_size
        self._place = Placer(
            mesh,
            to_device=options.experimental_fetch_to_device is not False,
            owns_batches=reading.owns_batches,
        )
        self._next_epoch = 0
        self._step_type: StepType | None = reading.expected_type()
        self._peeked: _Peeked | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        spec = self._known_spec()
        if spec is None:
            shown = "not read yet"
        else:
            shown = f"shapes: {shapes_of(spec)!r}, types: {dtypes_of(spec)!r}"
        plural = "replica" if self.num_replicas == 1 else "replicas"
        return f"<DistributedDataset of {self.num_replicas} {plural}, {shown}>"

    @property
    def num_replicas(self) -> int:
        """How many replicas each value is for, on all workers."""
        return self._topology.num_replicas

    # -- iterating ---------------------------------------------------------------------------

    def __iter__(self) -> DistributedIterator:
        require_host_code("a DistributedDataset", self.num_replicas)
        return DistributedIterator(self, self._new_epoch())

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """``state = reduce_func(state, value)`` over the values of one pass.

        Args:
            initial_state: The state that the first call gets.
            reduce_func: Called with the state and the next value; returns the next state.

        Returns:
            The last state.

        Example:
            >>> import numpy as np
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
            >>> dataset = strategy.distribute_dataset(np.arange(6), batch_size=4)
            >>> dataset.reduce(0, lambda total, batch: total + strategy.reduce("SUM", batch, 0))
            Array(15, dtype=int32)
        """
        state = initial_state
        for value in self:
            state = reduce_func(state, value)
        return state

    def _new_epoch(self) -> int:
        """The number of a pass that begins; for the library."""
        with self._lock:
            epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
            return epoch

    def _continue_after(self, epoch: int) -> None:
        """Gives the next pass the number after `epoch`; for the library."""
        with self._lock:
            self._next_epoch = epoch + 1
            unwanted = None
            if self._peeked is not None and self._peeked.epoch != epoch:
                unwanted, self._peeked = self._peeked, None
        if unwanted is not None:
            unwanted.close()

    def _open(self, epoch: int, start: int) -> Preparing:
        """Begins to read a pass; for the library."""
        items = self._watched(self._steps(epoch, start))
        return prepared(items, self._place, buffer_size=self._buffer_size)

    def _steps(self, epoch: int, start: int) -> Iterator[HostStep]:
        with self._lock:
            peeked = self._peeked
            if peeked is None or peeked.epoch != epoch:
                return self._reading.open(epoch=epoch, start=start)
            self._peeked = None
        return peeked.steps_from(0) if start == 0 else self._steps_later(peeked, start)

    def _steps_later(self, peeked: _Peeked, start: int) -> Iterator[HostStep]:
        """A later part of the pass that was looked into, opened there if it can be opened twice."""
        try:
            yield from self._reading.open(epoch=peeked.epoch, start=start)
        except OneShotError:
            yield from peeked.steps_from(start)
        finally:
            peeked.close()

    def _watched(self, items: Iterator[HostStep]) -> Iterator[HostStep]:
        """The steps, of which one tells what all are like."""
        with steps.opened(items):
            for index, step in enumerate(items):
                if index == 0:
                    self._step_type = StepType.of(step)
                yield step

    def _knows_type(self) -> bool:
        """Whether it is known what a step looks like; for the library."""
        return self._step_type is not None

    def _can_be_empty(self) -> bool:
        """Whether a step without examples is possible; for the library."""
        return self._step_type is None or self._step_type.can_be_empty

    def _empty_value(self) -> Any:
        """What a worker hands out that has no data left while others have; for the library."""
        if self._step_type is None:
            raise BatchError(
                f"{self._reading.description} has no data at all on worker "
                f"{self._topology.worker_id}, while other workers have, and does not say what its "
                "batches look like. Give every worker some data, or use a pipeline with an "
                "element_spec."
            )
        return self._place(self._reading.empty_step(self._step_type))

    # -- what is known -----------------------------------------------------------------------

    @property
    def element_spec(self) -> Any:
        """A nest of `PerReplicaSpec`, or of `TensorSpec` for one replica.

        Can be used as an ``input_signature``. Where only reading can tell, the first
        batch is read, and kept for the first pass.

        Raises:
            BatchError: If there is no batch to tell.
        """
        spec = self._known_spec()
        if spec is None:
            self._peek()
            spec = self._known_spec()
        if spec is None:
            raise BatchError(
                f"{self._reading.description} is empty, so nothing tells the shapes and types of "
                "its batches."
            )
        return spec

    def _known_spec(self) -> Any | None:
        spec = self._reading.element_spec
        if spec is None and self._step_type is not None:
            return self._reading.spec_of(self._step_type)
        return spec

    def _peek(self) -> None:
        with self._lock:
            if self._peeked is not None:
                return
            epoch = self._next_epoch
            self._peeked = _Peeked(epoch, self._reading.open(epoch=epoch, start=0))
            if self._peeked.first:
                self._step_type = StepType.of(self._peeked.first[0])

    @property
    def cardinality(self) -> int:
        """Steps in one pass; -1 if it never ends, -2 if that is not known without reading."""
        return self._reading.cardinality

    def __len__(self) -> int:
        count = self._reading.cardinality
        if count == INFINITE:
            raise TypeError(
                f"this dataset has no len(): {self._reading.description} never ends. Take as many "
                "steps as you want from iter(dataset)."
            )
        if count == UNKNOWN:
            raise TypeError(
                f"this dataset has no len(): how many steps {self._reading.description} has is "
                "known only when it has been read. Count them while iterating."
            )
        return count

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: object) -> Any:
        raise TypeError(
            f"a DistributedDataset cannot be subscripted (got [{index!r}]): its values are made "
            "one after the other. Iterate over it, or take next(iter(dataset))."
        )

    if not TYPE_CHECKING:  # or type checkers would accept every name

        def __getattr__(self, name: str) -> Any:
            """Says where the transformations are."""
            text = f"'DistributedDataset' object has no attribute {name!r}"
            if name in _TRANSFORMATIONS.split():
                text += f": transform the pipeline before distributing it, dataset.{name}(...)."
            raise AttributeError(text, name=name, obj=self)
