"""Grain's `DataLoader`: a stream whose division, if it has one, is its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replicax.core.enums import AutoShardPolicy
from replicax.input.adapters import grain_nodes
from replicax.input.adapters.host_source import Convert, HostSource
from replicax.input.adapters.reading import Reading
from replicax.input.source import INFINITE, UNKNOWN, Source


def source_of(loader: Any) -> Source:
    """A source of the batches of a `grain.DataLoader`."""
    return GrainLoaderSource(loader)


class GrainLoaderSource(HostSource):
    """Reads a `grain.DataLoader`.

    Args:
        loader: The loader.

    Example:
        >>> import grain
        >>> loader = grain.DataLoader(
        ...     data_source=grain.sources.RangeDataSource(0, 5, 1),
        ...     sampler=grain.samplers.SequentialSampler(5, grain.sharding.NoSharding()),
        ...     operations=[grain.transforms.Batch(2)],
        ... )
        >>> [batch.tolist() for batch in GrainLoaderSource(loader).open(epoch=0, start=1)]
        [[2, 3], [4]]
    """

    description = "a Grain DataLoader"
    advice = "Give the loader a batch operation: operations=[..., grain.transforms.Batch(size)]."

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    @property
    def cardinality(self) -> int:
        """Infinite where the sampler is, else unknown: an operation may drop records."""
        return INFINITE if grain_nodes.is_endless_loader(self._loader) else UNKNOWN

    @property
    def batch_size(self) -> int | None:
        """The size in the batch operation, if that is the last one."""
        operations = grain_nodes.operations_of_loader(self._loader)
        return getattr(operations[-1], "batch_size", None) if operations else None

    @property
    def auto_shard_policy(self) -> AutoShardPolicy | None:
        """HINT if the loader was given shard options of its own: it is divided already."""
        divided = grain_nodes.num_shards_of_loader(self._loader) > 1
        return AutoShardPolicy.HINT if divided else None

    def _why_unbatched(self) -> str | None:
        if grain_nodes.operations_of_loader(self._loader):
            return None
        return "a Grain DataLoader without operations gives single records."

    def _read(self, convert: Convert, *, epoch: int, start: int) -> Iterator[Any]:
        """Reads from the beginning and passes over `start` batches; `epoch` changes nothing."""
        return Reading(iter(grain_nodes.stream_of_loader(self._loader)), convert, skip=start)
