"""Our own `data.Dataset`, as a source of global batches.

What is shuffled depends on the seed and the pass only. Pipelines whose elements are found by index
are read in parts; the rest is read in order, and by files if it begins with files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from replicax.core import nest
from replicax.core.enums import AutoShardPolicy
from replicax.core.errors import BatchError
from replicax.core.spec import TensorSpec
from replicax.input.adapters.host_batch import host_batch, part_of_batch
from replicax.input.adapters.reading import Reading
from replicax.input.pipeline import elements
from replicax.input.pipeline.dataset import Dataset
from replicax.input.pipeline.holding import options_of
from replicax.input.pipeline.stage import Stage, open_pass, read_in_order
from replicax.input.source import (
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

    What is chosen out of arrays in memory is taken all at once. Examples that follow one another in
    arrays that never change are not copied: they are handed out as read-only parts of them.

    Example:
        >>> dataset = Dataset.range(10).batch(4)
        >>> source = source_of(dataset)
        >>> [part.batch for part in source.open_parts(lambda n: slice(0, n // 2), epoch=0, start=1)]
        [array([4, 5]), array([8])]
    """

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.owns_batches = stage.is_divisible

    def open(self, *, epoch: int, start: int) -> Iterator[Batch]:
        """Reads whole batches of the pass `epoch`."""
        stage = self._stage
        if stage.is_divisible:
            return self._read(lambda place: stage.part_at(epoch, place, slice).batch, start)
        return self._read(lambda place: _converted(stage.at(epoch, place)), start)

    def open_parts(self, part_of: PartOf, *, epoch: int, start: int) -> Iterator[BatchPart]:
        """Reads parts of the batches of the pass `epoch`."""
        part_at = self._part_at
        return self._read(lambda place: part_at(epoch, place, part_of), start)

    def _read(self, at: Callable[[int], Any], start: int) -> Reading:
        self._check_batches()
        return Reading(read_in_order(self._stage, at, start), _as_it_is)

    @property
    def _part_at(self) -> Callable[[int, int, PartOf], BatchPart]:
        return self._stage.part_at if self._stage.is_divisible else self._part_of_whole

    def _part_of_whole(self, epoch: int, place: int, part_of: PartOf) -> BatchPart:
        batch = _converted(self._stage.at(epoch, place))
        return part_of_batch(batch, part_of, description=_DESCRIPTION)


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


def _as_it_is(element: Any) -> Any:
    return element


def _host_arrays(element: elements.Element) -> Any:
    return nest.map_leaves(np.asarray, element)


def _converted(element: elements.Element) -> Batch:
    return host_batch(element, description=_DESCRIPTION, advice=_ADVICE)
