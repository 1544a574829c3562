"""Grain's `MapDataset`: any part of any batch, by random access.

A batch node whose examples Grain only stacks is replaced by one that fetches the wanted
examples, and nodes above it that choose batches by index stay as they are. What follows
a function on batches, or a `batch_fn`, is read whole and cut: such a function may mix the
examples of a batch.

A pass is what iterating the dataset gives, the same every time: Grain's order depends on
its seeds alone. ``repeat()`` reshuffles, another pass does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replicax.core.enums import AutoShardPolicy
from replicax.input.adapters import grain_nodes
from replicax.input.adapters.host_batch import join_parts, part_of_batch, spec_of
from replicax.input.adapters.host_source import Convert, HostSource
from replicax.input.adapters.reading import Reading
from replicax.input.source import (
    INFINITE,
    UNKNOWN,
    Batch,
    BatchPart,
    IndexedSource,
    PartOf,
)


def source_of(
    dataset: Any,
    *,
    auto_shard_policy: AutoShardPolicy | None = None,
    read_options: Any = None,
) -> IndexedSource:
    """A source of the batches of a `grain.MapDataset`.

    Args:
        dataset: The pipeline.
        auto_shard_policy: The policy that the user attached to it.
        read_options: The `grain.ReadOptions` of the threads that read ahead; None reads
            in the thread that takes the batches.
    """
    return GrainMapSource(dataset, auto_shard_policy=auto_shard_policy, read_options=read_options)


class GrainMapSource(HostSource, IndexedSource):
    """Reads a `grain.MapDataset`.

    Args:
        dataset: The pipeline.
        auto_shard_policy: The policy that the user attached to it.
        read_options: The `grain.ReadOptions` of threads that read ahead, or None.

    Example:
        >>> import grain
        >>> source = GrainMapSource(grain.MapDataset.range(10).batch(4))
        >>> [part.batch for part in source.open_parts(lambda n: slice(0, n // 2), epoch=0, start=1)]
        [array([4, 5]), array([8])]
    """

    description = "a Grain MapDataset"
    advice = "Batch the examples first: dataset.batch(global_batch_size)."

    def __init__(
        self,
        dataset: Any,
        *,
        auto_shard_policy: AutoShardPolicy | None = None,
        read_options: Any = None,
    ) -> None:
        self._dataset = dataset
        self._policy = auto_shard_policy
        self._read_options = read_options
        self._is_sparse = grain_nodes.drops_elements(dataset)
        self._steps = grain_nodes.batch_steps(dataset)
        self._blanks: dict[int, Batch] = {}
        self._spec: Any = None
        self.owns_batches = self._steps is not None

    @property
    def element_spec(self) -> Any | None:
        """Known from one example, or one batch, which is read when this is first asked."""
        if self._spec is None:
            self._spec = self._find_spec()
        return self._spec

    def _find_spec(self) -> Any | None:
        if not len(self._dataset):
            return None
        if self._steps is not None:
            parts = grain_nodes.reading_parts(self._dataset, lambda _: slice(0, 1), self._blanks)
            part = self._joined(parts[0])
            sizes = {step.size if step.is_uniform else None for step in self._steps}
            return spec_of(part.batch, num_examples=sizes.pop() if len(sizes) == 1 else None)
        first = self._dataset[0]
        return None if first is None else spec_of(self._element(first), num_examples=None)

    @property
    def cardinality(self) -> int:
        """The length of the dataset, unless it drops elements."""
        if len(self._dataset) >= grain_nodes.ENDLESS:
            return INFINITE
        return UNKNOWN if self._is_sparse else len(self._dataset)

    @property
    def batch_size(self) -> int | None:
        """The size that was given to ``batch``, unless a function changes batches after it."""
        sizes = {step.size for step in self._steps or ()}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def auto_shard_policy(self) -> AutoShardPolicy | None:
        return self._policy

    def _why_unbatched(self) -> str | None:
        if not len(self._dataset):
            return None
        if not grain_nodes.is_unbatched(self._dataset):
            return None
        return (
            f"{self.description} of {len(self._dataset)} examples has no batch step. If its "
            "elements are batches already, pass a list of them, or a function that yields them."
        )

    def open_parts(self, part_of: PartOf, *, epoch: int, start: int) -> Iterator[BatchPart]:
        """Reads parts of batches; `epoch` changes nothing."""
        self._require_batches()
        if self._steps is None:
            return self._reading(
                self._dataset,
                lambda element: part_of_batch(
                    self._batch(element), part_of, description=self.description
                ),
                start,
            )
        parts = grain_nodes.reading_parts(self._dataset, part_of, self._blanks)
        return self._reading(parts, self._joined, start)

    def _read(self, convert: Convert, *, epoch: int, start: int) -> Iterator[Any]:
        """Reads whole batches; `epoch` changes nothing."""
        if self._steps is None:
            return self._reading(self._dataset, convert, start)
        whole = grain_nodes.reading_parts(self._dataset, slice, self._blanks)
        return self._reading(whole, lambda element: self._joined(element).batch, start)

    def _joined(self, element: Any) -> BatchPart:
        part = join_parts(element, description=self.description)
        return BatchPart(self._batch(part.batch), part.global_size)

    def _reading(self, dataset: Any, convert: Convert, start: int) -> Reading:
        if self._is_sparse:  # which index has the batch that `start` counts is not known
            return Reading(
                self._elements(dataset),
                convert,
                skip=start,
                keep=lambda element: element is not None,
            )
        rest = dataset[start:] if start else dataset
        return Reading(self._elements(grain_nodes.refusing_none(rest)), convert)

    def _elements(self, dataset: Any) -> Iterator[Any]:
        if self._read_options is not None:
            return iter(dataset.to_iter_dataset(self._read_options, allow_nones=True))
        return (dataset[index] for index in range(len(dataset)))
