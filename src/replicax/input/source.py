"""What an adapter makes of a user's pipeline: a source of global batches.

`DistributedDataset` knows pipelines only as the classes here, and an adapter
implements the most able of them that its library allows:

===============  =========================================================
`Source`         reads whole global batches, in order
`IndexedSource`  can also read any part of any batch, and nothing else
`FileSource`     can also read only some of its files
===============  =========================================================

A source is a description: it holds no open file, thread or position. Each call
of `open` starts a pass of its own, and passes do not disturb each other.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from replicax.core.enums import AutoShardPolicy

INFINITE = -1
"""The cardinality of a source that never ends."""

UNKNOWN = -2
"""The cardinality of a source that has to be read to be counted."""

Batch = Any
"""A nest of host arrays whose dim 0 counts the examples."""

PartOf = Callable[[int], slice]
"""From the size of a global batch to the examples of it that are wanted."""


@dataclasses.dataclass(frozen=True, slots=True)
class BatchPart:
    """Some consecutive examples of one global batch.

    Attributes:
        batch: The examples, a nest of host arrays.
        global_size: How many examples the whole batch has.
    """

    batch: Batch
    global_size: int


class Source(abc.ABC):
    """A pipeline of global batches.

    Attributes:
        description: What it is, for messages: ``"a Grain MapDataset"``.
        owns_batches: Whether every batch is in host buffers that nobody writes to after
            handing it out, so that a device may adopt it without a copy. One that may be
            handed out again is read-only.
    """

    description: str = "a pipeline"
    owns_batches: bool = False

    @property
    def element_spec(self) -> Any | None:
        """A nest of `TensorSpec` of a global batch, or None if only reading can tell.

        Dim 0 is None unless every batch is known to have the same size.
        """
        return None

    @property
    def cardinality(self) -> int:
        """Global batches in one pass, `INFINITE` or `UNKNOWN`."""
        return UNKNOWN

    @property
    def batch_size(self) -> int | None:
        """Examples in a full global batch, or None if only reading can tell."""
        return None

    @property
    def auto_shard_policy(self) -> AutoShardPolicy | None:
        """The policy that the user attached to the pipeline itself, if any."""
        return None

    @abc.abstractmethod
    def open(self, *, epoch: int, start: int) -> Iterator[Batch]:
        """Reads the batches of one pass.

        Args:
            epoch: Which pass over the source this is, from 0. What is shuffled anew
                each time depends on it and on nothing else.
            start: The global batch to begin with. Batches before it are passed over
                as cheaply as the library allows.

        Returns:
            An iterator. If it holds a thread, a process or a file it has a `close`
            method, which may be called at any time and more than once.

        Raises:
            BatchError: If the elements cannot be batches (scalars, ragged, sparse).
            OneShotError: If the source can serve one pass only, and has.
        """

    def open_elements(self, *, epoch: int, start: int) -> Iterator[Any]:
        """Reads the elements of one pass as `open` does, but accepts those without a batch dim.

        A ``dataset_fn`` may return a pipeline of single examples. Sources whose `open`
        refuses scalars override this; everything else about the elements is the same.
        """
        return self.open(epoch=epoch, start=start)


class IndexedSource(Source):
    """A source whose batches can be read in part, without reading the rest."""

    @abc.abstractmethod
    def open_parts(self, part_of: PartOf, *, epoch: int, start: int) -> Iterator[BatchPart]:
        """Reads the same part of every batch of one pass, and only that.

        The parts of all workers, put together, are the batches that `open` gives,
        bit for bit.

        Args:
            part_of: Which examples of a batch of a given size are wanted; may be none.
            epoch: Which pass over the source this is, from 0.
            start: The global batch to begin with.
        """


class FileSource(Source):
    """A source that reads files, which can be divided among workers."""

    @property
    @abc.abstractmethod
    def files(self) -> tuple[str, ...]:
        """The files, in the order in which they were given."""

    @abc.abstractmethod
    def of_files(self, files: tuple[str, ...]) -> Source:
        """The same pipeline over these files only."""
