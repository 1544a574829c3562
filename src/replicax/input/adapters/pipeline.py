"""Our own `data.Dataset`, as a source of global batches.

The pipeline of a pass is built for its epoch, so what is shuffled depends on the seed and
the epoch. Pipelines whose elements are found by index are read as Grain's `MapDataset`
is, in parts; the rest is read in order, and by files if it begins with files.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from replicax.core import nest
from replicax.core.enums import AutoShardPolicy
from replicax.core.errors import BatchError
from replicax.core.spec import TensorSpec
from replicax.input.adapters import grain_map
from replicax.input.adapters.host_batch import host_batch
from replicax.input.adapters.reading import Reading
from replicax.input.pipeline import elements
from replicax.input.pipeline.batching import Batch as BatchStage
from replicax.input.pipeline.dataset import Dataset
from replicax.input.pipeline.holding import options_of
from replicax.input.pipeline.stage import Choosing, Stage, open_pass
from replicax.input.source import (
    INFINITE,
    Batch,
    BatchPart,
    FileSource,
    IndexedSource,
    PartOf,
    Source,
)

_DESCRIPTION = "a data.Dataset"
_ADVICE = "Batch the examples first: dataset.batch(global_batch_size)."


def source_of(dataset: Dataset) -> Source:
    """A source of the batches of a `data.Dataset`.

    A pipeline that has no batch step is refused when its batches are opened.
    """
    stage = dataset._stage
    choosing, batch = _until_batch(stage)
    if batch is not None and batch.gathers:
        return GatheredPipelineSource(stage, choosing, batch)
    if stage.is_indexed:
        return IndexedPipelineSource(stage)
    return StreamPipelineSource(stage) if stage.files is None else FilePipelineSource(stage)


class _PipelineFacts(Source):
    """What is known about a pipeline before it is read.

    Args:
        stage: Its last step.
    """

    description = _DESCRIPTION

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    @property
    def element_spec(self) -> Any | None:
        """Known from one example, which goes through the functions given to ``map``."""
        rows = self._stage.rows

        def with_dim_0(spec: TensorSpec) -> TensorSpec:
            if not spec.shape or (rows.is_uniform and rows.size is None):
                return spec
            return TensorSpec((rows.size if rows.is_uniform else None, *spec.shape[1:]), spec.dtype)

        return elements.map_spec(with_dim_0, self._stage.spec)

    @property
    def cardinality(self) -> int:
        """As the steps of the pipeline add up."""
        return self._stage.count

    @property
    def batch_size(self) -> int | None:
        """The size given to ``batch``, if what follows keeps it."""
        return self._stage.rows.size

    @property
    def auto_shard_policy(self) -> AutoShardPolicy | None:
        """What ``with_options`` attached."""
        return options_of(self._stage)._auto_shard_policy

    def open_elements(self, *, epoch: int, start: int) -> Iterator[Any]:
        """Reads the elements of the pass `epoch`, batches or not."""
        return Reading(open_pass(self._stage, epoch, start), _host_arrays)

    def _check_batches(self) -> None:
        if self._stage.rows.is_batch is False:
            raise BatchError(
                f"{_DESCRIPTION} has elements {self._stage.spec}, which no step of it batches. "
                f"{_ADVICE}"
            )


class IndexedPipelineSource(_PipelineFacts, IndexedSource):
    """Reads a pipeline whose elements are found by index, in parts.

    Example:
        >>> dataset = Dataset.range(10).batch(4)
        >>> source = source_of(dataset)
        >>> [part.batch for part in source.open_parts(lambda n: slice(0, n // 2), epoch=0, start=1)]
        [array([4, 5]), array([8])]
    """

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.owns_batches = self._read_in(0).owns_batches

    def _read_in(self, epoch: int) -> IndexedSource:
        read_ahead = self._stage.read_ahead
        source = grain_map.source_of(
            self._stage.build(epoch),
            read_options=read_ahead.read_options if read_ahead.buffer_size else None,
            holds_batches=True,
        )
        source.description = _DESCRIPTION
        return source

    def open(self, *, epoch: int, start: int) -> Iterator[Batch]:
        """Reads whole batches of the pass `epoch`."""
        self._check_batches()
        return self._read_in(epoch).open(epoch=0, start=start)

    def open_parts(self, part_of: PartOf, *, epoch: int, start: int) -> Iterator[BatchPart]:
        """Reads parts of the batches of the pass `epoch`."""
        self._check_batches()
        return self._read_in(epoch).open_parts(part_of, epoch=0, start=start)


class GatheredPipelineSource(_PipelineFacts, IndexedSource):
    """Takes batches, or parts of them, out of arrays in memory, all examples at once.

    Examples that follow one another in arrays that never change are not copied: they are
    handed out as read-only parts of these arrays.

    Args:
        stage: The last step.
        choosing: The steps after the batch step, which only choose batches, the last one first.
        batch: The batch step, which `gathers`.

    Example:
        >>> source = source_of(Dataset.range(6).batch(4))
        >>> [part.batch for part in source.open_parts(lambda n: slice(0, 1), epoch=0, start=0)]
        [array([0]), array([4])]
    """

    owns_batches = True

    def __init__(self, stage: Stage, choosing: Sequence[Choosing], batch: BatchStage) -> None:
        super().__init__(stage)
        self._choosing = choosing
        self._batch = batch

    def open(self, *, epoch: int, start: int) -> Iterator[Batch]:
        """Reads whole batches of the pass `epoch`."""
        return Reading(self._places(start), lambda place: self._part(epoch, place, slice).batch)

    def open_parts(self, part_of: PartOf, *, epoch: int, start: int) -> Iterator[BatchPart]:
        """Reads parts of the batches of the pass `epoch`."""
        return Reading(self._places(start), lambda place: self._part(epoch, place, part_of))

    def _places(self, start: int) -> Iterator[int]:
        count = self._stage.count
        return itertools.count(start) if count == INFINITE else iter(range(start, count))

    def _part(self, epoch: int, place: int, part_of: PartOf) -> BatchPart:
        for stage in self._choosing:
            epoch, place = stage.locate_one(epoch, place)
        return self._batch.part_at(epoch, place, part_of, may_share=True)


def _until_batch(stage: Stage) -> tuple[list[Choosing], BatchStage | None]:
    """The steps that choose batches, the last one first, and the batch step before them, if any."""
    choosing: list[Choosing] = []
    while isinstance(stage, Choosing):
        choosing.append(stage)
        stage = stage.input
    return choosing, stage if isinstance(stage, BatchStage) else None


class StreamPipelineSource(_PipelineFacts):
    """Reads a pipeline whose elements come one after another.

    Example:
        >>> dataset = Dataset.range(10).filter(lambda x: x % 3 == 0).batch(2)
        >>> list(source_of(dataset).open(epoch=0, start=1))
        [array([6, 9])]
    """

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.owns_batches = stage.makes_buffers

    def open(self, *, epoch: int, start: int) -> Iterator[Batch]:
        """Reads the pass `epoch`, computing and dropping what is before `start`."""
        self._check_batches()
        return Reading(open_pass(self._stage, epoch, start), _converted)


class FilePipelineSource(StreamPipelineSource, FileSource):
    r"""Reads a pipeline that begins with files.

    Example:
        >>> import tempfile
        >>> from replicax.input.pipeline.files import TextLineDataset
        >>> with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        ...     _ = file.write(b"5\n6\n7\n") + file.seek(0)
        ...     source = source_of(TextLineDataset([file.name]).map(float).batch(2))
        ...     len(source.files), list(source.of_files(source.files).open(epoch=0, start=0))
        (1, [array([5., 6.], dtype=float32), array([7.], dtype=float32)])
    """

    @property
    def files(self) -> tuple[str, ...]:
        """The files, in the order of the first pass."""
        return self._stage.files or ()

    def of_files(self, files: tuple[str, ...]) -> Source:
        """The same steps over some of the files."""
        return FilePipelineSource(self._stage.of_files(files))


def _host_arrays(element: elements.Element) -> Any:
    return nest.map_leaves(np.asarray, element)


def _converted(element: elements.Element) -> Batch:
    return host_batch(element, description=_DESCRIPTION, advice=_ADVICE)
