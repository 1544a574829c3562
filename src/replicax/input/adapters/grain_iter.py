"""Grain's `IterDataset`: a stream, or a `MapDataset` that has been made one.

A stream that only maps and batches the elements of one `MapDataset` is read as that
`MapDataset` wherever parts of batches are wanted, and as the stream, with its own
threads, wherever whole batches are. Any other stream can only be read in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replicax.core import nest
from replicax.core.enums import AutoShardPolicy
from replicax.core.spec import TensorSpec
from replicax.input.adapters import grain_files, grain_nodes
from replicax.input.adapters.grain_map import GrainMapSource
from replicax.input.adapters.host_batch import without_width
from replicax.input.adapters.host_source import Convert, HostSource
from replicax.input.adapters.reading import Reading
from replicax.input.source import INFINITE, UNKNOWN, FileSource, Source


def source_of(dataset: Any, *, auto_shard_policy: AutoShardPolicy | None = None) -> Source:
    """A source of the batches of a `grain.IterDataset`: indexed and of files where it can be."""
    if grain_nodes.as_map(dataset) is not None:
        kind = GrainChainSource
    else:
        kind = GrainIterFileSource if grain_files.files_of(dataset) else GrainIterSource
    return kind(dataset, auto_shard_policy=auto_shard_policy)


class GrainIterSource(HostSource):
    """Reads a `grain.IterDataset` in order.

    Args:
        dataset: The pipeline.
        auto_shard_policy: The policy that the user attached to it.

    Example:
        >>> import grain
        >>> odd = grain.MapDataset.range(9).to_iter_dataset().filter(lambda x: x % 2 == 1)
        >>> [batch.tolist() for batch in GrainIterSource(odd.batch(3)).open(epoch=0, start=0)]
        [[1, 3, 5], [7]]
    """

    description = "a Grain IterDataset"
    advice = GrainMapSource.advice

    def __init__(self, dataset: Any, *, auto_shard_policy: AutoShardPolicy | None = None) -> None:
        self._dataset = dataset
        self._policy = auto_shard_policy

    @property
    def element_spec(self) -> Any | None:
        """What Grain can tell without reading."""
        declared = grain_nodes.declared_spec(self._dataset)
        if declared is None:
            return None
        return nest.map_leaves(
            lambda leaf: TensorSpec(leaf.shape, without_width(leaf.dtype)), declared
        )

    @property
    def cardinality(self) -> int:
        """Infinite where the stream repeats for ever, else unknown."""
        return INFINITE if grain_nodes.is_endless(self._dataset) else UNKNOWN

    @property
    def batch_size(self) -> int | None:
        """The size that was given to ``batch``."""
        return grain_nodes.stream_batch_size(self._dataset)

    @property
    def auto_shard_policy(self) -> AutoShardPolicy | None:
        return self._policy

    def _why_unbatched(self) -> str | None:
        return _unbatched(self._dataset)

    def _read(self, convert: Convert, *, epoch: int, start: int) -> Iterator[Any]:
        """Reads from the beginning and passes over `start` batches; `epoch` changes nothing."""
        return Reading(iter(self._dataset), convert, skip=start)


def _unbatched(dataset: Any) -> str | None:
    is_unbatched = grain_nodes.is_unbatched(dataset)
    return "a Grain IterDataset has no batch step." if is_unbatched else None


class GrainChainSource(GrainMapSource):
    """Reads a `grain.IterDataset` that is a `MapDataset` in other words.

    Args:
        dataset: The pipeline; `grain_nodes.as_map` knows its `MapDataset`.
        auto_shard_policy: The policy that the user attached to it.

    Example:
        >>> import grain
        >>> chain = grain.MapDataset.range(9).to_iter_dataset().batch(3)
        >>> GrainChainSource(chain).cardinality
        3
    """

    description = "a Grain IterDataset"

    def __init__(self, dataset: Any, *, auto_shard_policy: AutoShardPolicy | None = None) -> None:
        super().__init__(
            grain_nodes.as_map(dataset),
            auto_shard_policy=auto_shard_policy,
            read_options=grain_nodes.read_options_of(dataset),
        )
        self._stream = dataset
        self.owns_batches = False  # Grain's batch of one example is a view of the example

    def _why_unbatched(self) -> str | None:
        return _unbatched(self._stream)

    def _read(self, convert: Convert, *, epoch: int, start: int) -> Iterator[Any]:
        """Reads the stream itself, from batch `start` on; `epoch` changes nothing."""
        return Reading(iter(grain_nodes.starting_at(self._stream, start)), convert)


class GrainIterFileSource(GrainIterSource, FileSource):
    """Reads a stream of files in order."""

    @property
    def files(self) -> tuple[str, ...]:
        """The files that the stream reads."""
        return grain_files.files_of(self._dataset)

    def of_files(self, files: tuple[str, ...]) -> Source:
        """The same stream over these files."""
        dataset = grain_files.over_files(self._dataset, files)
        return source_of(dataset, auto_shard_policy=self._policy)
