"""Reads the pipelines that a ``dataset_fn`` made: each replica takes one batch a step."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from replicax.core import nest, notices
from replicax.core.errors import BatchError, InputStateError
from replicax.core.spec import TensorSpec
from replicax.core.typing import Device
from replicax.input import splitting, steps
from replicax.input.context import InputContext
from replicax.input.element_spec import handed_out, merged_spec, type_of_spec
from replicax.input.source import INFINITE, UNKNOWN, Source
from replicax.input.steps import HostStep, Share, StepReader, StepType
from replicax.input.topology import InputTopology

_serials = itertools.count()

_Element = tuple[list[Any], Any]


def input_contexts(topology: InputTopology, *, per_replica: bool) -> list[InputContext]:
    """What this worker's calls of ``dataset_fn`` are told: one call, or one per replica."""
    count = topology.num_replicas
    if not per_replica:
        return [InputContext(topology.num_workers, topology.worker_id, count)]
    return [InputContext(count, replica, count) for replica in topology.local_replicas]


class PerReplicaBatches(StepReader):
    """The steps that one worker makes of pipelines of per-replica batches.

    A replica whose pipeline has ended while others have data takes an empty batch.
    Elements without a batch dim cannot be empty: there the incomplete step is dropped.

    Args:
        sources: One pipeline for all replicas of this worker, or one for each.
        topology: The workers, and which of them this is.
        devices: With one pipeline per replica: where each of them runs, if anywhere
            in particular.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        topology: InputTopology,
        *,
        per_replica: bool,
        devices: Sequence[Device] | None = None,
    ) -> None:
        """Prepares to read; nothing is opened yet."""
        self.description = sources[0].description
        self.owns_batches = all(source.owns_batches for source in sources)
        self._sources = tuple(sources)
        self._topology = topology
        self._per_replica = per_replica
        self._devices = devices
        self._serial = next(_serials)

    # -- what is known without reading -------------------------------------------------------

    @property
    def element_spec(self) -> Any | None:
        """The specs, if every source knows its own."""
        specs = [source.element_spec for source in self._sources]
        if any(spec is None for spec in specs):
            return None
        if not self._per_replica:
            specs = specs * len(self._topology.local_replicas)
        # What the pipelines of other workers give is not known, but has to be the same.
        specs = specs * self._topology.num_workers
        fixed = self._never_gives_empty()
        return nest.transpose(
            specs, lambda leaves: merged_spec([_loosened(leaf, fixed) for leaf in leaves])
        )

    def _never_gives_empty(self) -> bool:
        """Whether all pipelines are known to end together, after a whole step."""
        counts = {source.cardinality for source in self._sources}
        if counts == {INFINITE} or self._topology.num_replicas == 1:
            return True
        if len(counts) > 1 or UNKNOWN in counts or self._topology.num_workers > 1:
            return False
        return self._per_replica or counts.pop() % self._topology.replicas_per_worker == 0

    def spec_of(self, step_type: StepType) -> Any:
        """The specs; how large other batches are is not known."""
        return nest.map_leaves(
            lambda leaf: merged_spec([handed_out(leaf)] * self._topology.num_replicas),
            step_type.spec(),
        )

    @property
    def cardinality(self) -> int:
        """Steps; what the pipelines of other workers hold is not known."""
        counts = [source.cardinality for source in self._sources]
        step_type = self.expected_type()
        may_drop = step_type is not None and not step_type.can_be_empty
        if UNKNOWN in counts:
            return UNKNOWN
        if INFINITE in counts and not (may_drop and min(counts) != max(counts)):
            return INFINITE
        if self._topology.num_workers > 1:
            return UNKNOWN
        counts = [count for count in counts if count != INFINITE]
        if self._per_replica:
            return min(counts) if may_drop else max(counts)
        taken = self._topology.replicas_per_worker
        return counts[0] // taken if may_drop else -(-counts[0] // taken)

    def expected_type(self) -> StepType | None:
        """The type of a step, if the sources know their specs."""
        spec = self._sources[0].element_spec
        return None if spec is None else type_of_spec(spec)

    # -- reading -----------------------------------------------------------------------------

    def open(self, *, epoch: int, start: int) -> Iterator[HostStep]:
        """Reads one pass, from step `start` on."""
        taken = 1 if self._per_replica else self._topology.replicas_per_worker
        with contextlib.ExitStack() as stack:
            pipelines = []
            for place, source in enumerate(self._sources):
                with self._on_device(place):
                    elements = source.open_elements(epoch=epoch, start=start * taken)
                pipelines.append(stack.enter_context(steps.opened(elements)))
            while True:
                elements = self._take(pipelines)
                if all(element is None for element in elements):
                    return
                step = self._step(elements)
                if step is None:
                    return
                yield step

    def _on_device(self, place: int) -> contextlib.AbstractContextManager[Any]:
        if self._devices is None:
            return contextlib.nullcontext()
        return jax.default_device(self._devices[place])

    def _take(self, pipelines: Sequence[Iterator[Any]]) -> list[_Element | None]:
        """The next element of each local replica; None where there is none."""
        taken: list[_Element | None] = []
        for place in range(self._topology.replicas_per_worker):
            if not self._per_replica and taken and taken[-1] is None:
                taken.append(None)  # an iterator that has ended need not be asked again
                continue
            with self._on_device(place):
                elements = list(itertools.islice(pipelines[place if self._per_replica else 0], 1))
            taken.append(
                splitting.leaves_of(elements[0], may_be_scalars=True) if elements else None
            )
        return taken

    def _step(self, elements: list[_Element | None]) -> HostStep | None:
        """One step; None if it is incomplete and cannot be completed with empty batches."""
        present = [element for element in elements if element is not None]
        leaves, structure = present[0]
        for other in present:
            if other[1] != structure:
                raise BatchError(
                    f"{self.description} gave elements of different structure in one step: "
                    f"{structure} and {other[1]}. Every replica must get the same."
                )
        if len(present) < len(elements) and any(leaf.ndim == 0 for leaf in leaves):
            self._tell_of_dropped(len(present))
            return None
        columns = [
            [empty if element is None else element[0][index] for element in elements]
            for index, empty in enumerate(map(_empty_like, leaves))
        ]
        return HostStep(structure, [self._share(column) for column in columns])

    def _share(self, parts: Sequence[Any]) -> Share:
        if len({part.ndim for part in parts}) > 1:
            raise BatchError(
                f"{self.description} gave leaves of different rank in one step, of shapes "
                f"{[part.shape for part in parts]}. Every replica must get the same rank."
            )
        dtypes = {part.dtype for part in parts}
        if len(dtypes) > 1 and not splitting.is_on_host(parts[0]):
            raise BatchError(
                f"{self.description} gave leaves of different dtypes in one step: "
                f"{sorted(dtype.name for dtype in dtypes)}. Every replica must get the same."
            )
        own = [tuple(part.shape) for part in parts]
        local = self._topology.local_replicas
        largest = tuple(max(sizes) for sizes in zip(*own, strict=True))
        shapes = [largest] * self._topology.num_replicas
        shapes[local.start : local.stop] = own
        return Share(tuple(shapes), local, parts=tuple(parts))

    def _tell_of_dropped(self, count: int) -> None:
        notices.notify_once(
            ("incomplete step", self._serial),
            f"the last step of {self.description} was dropped, and {count} element"
            f"{'' if count == 1 else 's'} with it: it has elements for {count} of "
            f"{self._topology.replicas_per_worker} replicas, and elements without a batch dim "
            "cannot be empty. Batch them, dataset.batch(size), and nothing is dropped.",
        )

    def empty_step(self, step_type: StepType) -> HostStep:
        """A step in which the replicas of this worker have no example."""
        count = len(self._topology.local_replicas)
        empty = [np.zeros((0, *leaf.shape[1:]), leaf.dtype) for leaf in step_type.leaves]
        return HostStep(step_type.structure, [self._share([leaf] * count) for leaf in empty])

    # -- state -------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The pipelines and replicas, on which all that ``dataset_fn`` makes may depend."""
        topology = self._topology
        pipelines = topology.num_replicas if self._per_replica else topology.num_workers
        return {"num_input_pipelines": pipelines, "num_replicas": topology.num_replicas}

    def adopt(self, state: Mapping[str, Any]) -> None:
        """Checks that there are as many pipelines and replicas as there were."""
        for key, own in self.state().items():
            if state.get(key) != own:
                raise InputStateError(
                    f"the state was saved with {key}={state.get(key)}, and here it is {own}: "
                    "dataset_fn may have made other batches there, so the position means nothing "
                    "here. Restore it with the same numbers, or use distribute_dataset, whose "
                    "states fit any number of replicas."
                )


def _empty_like(leaf: Any) -> Any:
    return np.zeros((0, *leaf.shape[1:]), leaf.dtype) if leaf.ndim else leaf


def _loosened(spec: TensorSpec, is_fixed: bool) -> TensorSpec:
    """The spec with a batch of any size, unless no batch is ever shorter."""
    spec = handed_out(spec)
    if is_fixed or not spec.shape:
        return spec
    return TensorSpec((None, *spec.shape[1:]), spec.dtype, spec.name)


def source_from(
    dataset_fn: Callable[[InputContext], Any],
    context: InputContext,
    source_of: Callable[[Any], Source],
) -> Source:
    """Calls ``dataset_fn``.

    Raises:
        TypeError: If it cannot be called, or returns no dataset.
    """
    if not callable(dataset_fn):
        raise TypeError(
            f"dataset_fn is {dataset_fn!r}; expected a function that takes an InputContext and "
            "returns a dataset."
        )
    dataset = dataset_fn(context)
    if dataset is None:
        raise TypeError(
            f"dataset_fn returned None for {context}; expected a dataset. Is the return missing?"
        )
    return source_of(dataset)
