"""Reads a pipeline of global batches and divides each batch among all replicas."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from replicax.core import nest
from replicax.core.errors import BatchError, InputStateError
from replicax.core.spec import TensorSpec
from replicax.input import splitting, steps
from replicax.input.element_spec import handed_out, merged_spec, replicated_spec, type_of_spec
from replicax.input.sharding import Reads, ShardPlan
from replicax.input.source import UNKNOWN, Batch, BatchPart, IndexedSource
from replicax.input.splitting import BatchSplit
from replicax.input.steps import HostStep, Share, StepReader, StepType
from replicax.input.topology import InputTopology


class GlobalBatches(StepReader):
    """The steps that one worker makes of a pipeline of global batches.

    Every batch is one step of all replicas of all workers, so that the sequence of
    global batches does not depend on how many there are. Only where each worker has
    a stream of its own does a batch last for several steps, of which each takes as
    much as one worker's share of a full batch.

    Args:
        plan: What this worker reads.
        topology: The workers, and which of them this is.
    """

    def __init__(self, plan: ShardPlan, topology: InputTopology) -> None:
        """Prepares to read; nothing is opened yet."""
        source = plan.source
        self.description = source.description
        self.owns_batches = source.owns_batches
        self._source = source
        self._plan = plan
        self._topology = topology
        self._full_size = source.batch_size
        self._knows_size = self._full_size is not None
        self._require_batches(source.element_spec)

    def _require_batches(self, spec: Any) -> None:
        for path, leaf in [] if spec is None else nest.leaves_with_path(spec):
            if leaf.shape == ():
                raise BatchError(
                    f"leaf {path or '(the element itself)'} of {self.description} is a scalar of "
                    f"type {leaf.dtype.name}: its examples are not batched. Batch them by the "
                    "global batch size, dataset.batch(size), before distributing."
                )

    # -- what is known without reading -------------------------------------------------------

    @property
    def element_spec(self) -> Any | None:
        """The specs, if the source knows its own."""
        spec = self._source.element_spec
        return None if spec is None else nest.map_leaves(self._replicated, spec)

    def spec_of(self, step_type: StepType) -> Any:
        """The specs; how large other batches are is not known."""
        return nest.map_leaves(
            lambda leaf: replicated_spec(leaf, None, self._topology.num_replicas), step_type.spec()
        )

    def _replicated(self, spec: TensorSpec) -> Any:
        count = self._topology.num_replicas
        if spec.shape is None:
            return merged_spec([handed_out(spec)] * count)
        size = spec.shape[0]
        # A worker whose own stream ends first goes on with empty batches.
        is_fixed = size is not None and size % count == 0 and not self._has_own_stream
        return replicated_spec(spec, size // count if is_fixed and size else None, count)

    @property
    def cardinality(self) -> int:
        """Global batches; what the streams of other workers hold is not known."""
        return UNKNOWN if self._has_own_stream else self._source.cardinality

    @property
    def _has_own_stream(self) -> bool:
        return self._plan.reads is Reads.ITS_OWN_STREAM

    @property
    def is_shared(self) -> bool:
        """Whether the worker computes its part of batches that all know."""
        return self._plan.reads is Reads.ITS_PART

    def expected_type(self) -> StepType | None:
        """The type of a step, if the source knows its specs."""
        spec = self._source.element_spec
        return None if spec is None else type_of_spec(spec)

    # -- reading -----------------------------------------------------------------------------

    def open(self, *, epoch: int, start: int) -> Iterator[HostStep]:
        """Reads one pass, from step `start` on."""
        if self._plan.reads is Reads.ITS_PART:
            return self._parts(epoch, start)
        if self._has_own_stream:
            # How many steps a batch lasts is known only by reading it.
            return self._skipping(self._chunks(epoch), start)
        return self._batches(epoch, start)

    def _batches(self, epoch: int, start: int) -> Iterator[HostStep]:
        local = self._topology.local_replicas
        with steps.opened(self._source.open(epoch=epoch, start=start)) as batches:
            for batch in batches:
                leaves, structure = splitting.leaves_of(batch)
                yield HostStep(structure, [self._share(leaf, leaves, local) for leaf in leaves])

    def _share(self, leaf: Any, leaves: list[Any], local: range) -> Share:
        split = self._split(leaf.shape[0], leaves)
        own = leaf if self._topology.num_workers == 1 else leaf[split.slice_of(local)]
        return steps.divided(own, split.sizes, local)

    def _split(self, size: int, leaves: list[Any]) -> BatchSplit:
        count = self._topology.num_replicas
        full_size = self._learned_size(leaves) if self._plan.keeps_size else None
        if full_size is None:
            return BatchSplit.of(size, num_replicas=count)
        return BatchSplit.filling(size, full_size=full_size, num_replicas=count)

    def _learned_size(self, leaves: list[Any]) -> int | None:
        """Examples in a full batch: as declared, or as many as the first one has."""
        if not self._knows_size:
            self._knows_size = True
            if len({leaf.shape[0] for leaf in leaves}) == 1:
                self._full_size = leaves[0].shape[0]
        return self._full_size

    def _parts(self, epoch: int, start: int) -> Iterator[HostStep]:
        assert isinstance(self._source, IndexedSource)
        local = self._topology.local_replicas
        count = self._topology.num_replicas

        def part_of(size: int) -> slice:
            return BatchSplit.of(size, num_replicas=count).slice_of(local)

        with steps.opened(self._source.open_parts(part_of, epoch=epoch, start=start)) as parts:
            for part in parts:
                split = BatchSplit.of(part.global_size, num_replicas=count)
                leaves, structure = splitting.leaves_of(part.batch)
                self._require_own_part(part, leaves, split)
                shares = [steps.divided(leaf, split.sizes, local) for leaf in leaves]
                yield HostStep(structure, shares)

    def _require_own_part(self, part: BatchPart, leaves: list[Any], split: BatchSplit) -> None:
        own = split.slice_of(self._topology.local_replicas)
        for index, leaf in enumerate(leaves):
            if leaf.shape[0] != own.stop - own.start:
                name = splitting.names_of(part.batch)[index] or "(the batch itself)"
                raise BatchError(
                    f"leaf {name} of {self.description} has {leaf.shape[0]} rows where this "
                    f"worker's part of a batch of {part.global_size} has {own.stop - own.start} "
                    "examples. Every leaf must have the batch as dim 0; otherwise use "
                    "AutoShardPolicy.OFF."
                )

    def _chunks(self, epoch: int) -> Iterator[HostStep]:
        """A stream of this worker's own: its batches, each in as many steps as it lasts."""
        with steps.opened(self._source.open(epoch=epoch, start=0)) as batches:
            for batch in batches:
                yield from self._chunks_of(batch)

    def _chunks_of(self, batch: Batch) -> Iterator[HostStep]:
        leaves, structure = splitting.leaves_of(batch)
        splitting.require_one_size(batch, leaves)
        self._learned_size(leaves)
        share = self._examples_per_step()
        for start in range(0, leaves[0].shape[0], share):
            chunks = [leaf[start : start + share] for leaf in leaves]
            yield HostStep(structure, [self._own_share(chunk) for chunk in chunks])

    def _own_share(self, chunk: Any) -> Share:
        """A leaf of which only the local parts are known; the others are taken to be full."""
        local = self._topology.local_replicas
        largest = self._examples_per_step() // len(local)
        sizes = [largest] * self._topology.num_replicas
        own = BatchSplit.filling(
            len(chunk), full_size=self._examples_per_step(), num_replicas=len(local)
        )
        sizes[local.start : local.stop] = own.sizes
        return steps.divided(chunk, tuple(sizes), local)

    def _examples_per_step(self, full_size: int | None = None) -> int:
        full_size = self._full_size if full_size is None else full_size
        assert full_size is not None
        per_replica = -(-full_size // self._topology.num_replicas)
        return max(per_replica, 1) * self._topology.replicas_per_worker

    def _skipping(self, chunks: Iterator[HostStep], count: int) -> Iterator[HostStep]:
        with steps.opened(chunks) as rest:
            yield from itertools.islice(rest, count, None)

    def empty_step(self, step_type: StepType) -> HostStep:
        """A step in which the replicas of this worker have no example."""
        empty = [np.zeros((0, *leaf.shape[1:]), leaf.dtype) for leaf in step_type.leaves]
        if self._has_own_stream and self._full_size is not None:
            return HostStep(step_type.structure, [self._own_share(leaf) for leaf in empty])
        sizes = (0,) * self._topology.num_replicas
        local = self._topology.local_replicas
        return HostStep(step_type.structure, [steps.divided(leaf, sizes, local) for leaf in empty])

    # -- state -------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Nothing where batches are global; else what the sizes of the steps depend on."""
        if not self._plan.keeps_size:
            return {}
        state = {"num_workers": self._topology.num_workers, "batch_size": self._full_size}
        if self._has_own_stream and self._full_size is not None:
            state["examples_per_step"] = self._examples_per_step()
        return state

    def adopt(self, state: Mapping[str, Any]) -> None:
        """Takes over the size of a full batch, after checking that a step is the same there."""
        policy = self._plan.policy.name
        own_workers = self._topology.num_workers if self._plan.keeps_size else None
        workers = state.get("num_workers")
        if workers != own_workers:
            there = _described(workers)
            raise InputStateError(
                f"the state was saved where {there}; here {_described(own_workers)} (policy "
                f"{policy}). Restore it with as many workers and the same policy, or use "
                "AutoShardPolicy.DATA, whose states fit any number of workers."
            )
        full_size = state.get("batch_size") if self._full_size is None else self._full_size
        per_step = state.get("examples_per_step")
        if self._has_own_stream and per_step is not None and full_size is not None:
            own = self._examples_per_step(full_size)
            if per_step != own:
                raise InputStateError(
                    f"the state was saved where a worker takes {per_step} examples a step; here it "
                    f"takes {own}. Restore it with the same global batch size and a number of "
                    "replicas that divides it."
                )
        if full_size is not None:
            self._full_size, self._knows_size = full_size, True


def _described(num_workers: int | None) -> str:
    if num_workers is None:
        return "all workers share every batch"
    if num_workers == 1:
        return "one worker reads everything"
    return f"{num_workers} workers read streams of their own"
