"""What is inside a Grain dataset, and how to change it.

Grain's public API can build a pipeline but not take one apart, and reading a part of
every batch, or some of the files, means to take it apart. So this module, with
`grain_files`, touches private attributes of Grain, and no other module does;
`tests/input/adapters/test_grain_nodes.py` fails when one of them moves. Nodes are known by
class name: a subclass may do anything, so it is treated as a function of the user's.

A `MapDataset` is random access; `to_iter_dataset` makes a stream of it. A stream is
called a *chain* here if it only batches and maps what comes out of one `MapDataset`:
then it has an equal `MapDataset`, and may begin anywhere.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from replicax.core.errors import BatchError
from replicax.input.pipeline import elements
from replicax.input.source import Batch, BatchPart, PartOf

Node = Any
"""A Grain `MapDataset` or `IterDataset`."""

# Their elements are elements of their parents, chosen by index alone.
_CHOOSE_BY_INDEX = frozenset(
    {
        "ConcatenateMapDataset",
        "MixedMapDataset",
        "RepeatMapDataset",
        "ShuffleMapDataset",
        "SliceMapDataset",
        "WindowShuffleMapDataset",
        "ZipMapDataset",
        "_WithSeedMapDataset",
    }
)
_DROP_ELEMENTS = frozenset({"FilterMapDataset", "FlatMapMapDataset"})
_SOURCES = frozenset({"RangeMapDataset", "SourceMapDataset"})

# Streams whose elements are elements of their parent, in its order.
_PASS_ON = frozenset(
    {"ThreadPrefetchIterDataset", "WithOptionsIterDataset", "_WithSeedIterDataset"}
)
# Streams whose elements are some elements of their parent.
_CHOOSE = _PASS_ON | {
    "CacheIterDataset",
    "FilterIterDataset",
    "LimitIterDataset",
    "RepeatIterDataset",
    "WindowShuffleIterDataset",
}
_STREAM_SOURCES = frozenset({"ParquetIterDataset", "PrefetchIterDataset", "TFRecordIterDataset"})

ENDLESS = 1 << 40
"""A `MapDataset` without end has the length `sys.maxsize`, or what batching leaves of it."""

NO_ELEMENT = (
    "a function in a Grain pipeline gave None, so its elements cannot be counted by index. Drop "
    "elements with filter() after to_iter_dataset(), and batch after that."
)
"""Why an index without an element is an error."""


def kind_of(node: Node) -> str:
    """The class of a node of Grain's own, or "" for anything else."""
    return type(node).__name__ if type(node).__module__.startswith("grain.") else ""


def walk(dataset: Node) -> Iterator[Node]:
    """Every node of a pipeline, from its end to its sources."""
    yield dataset
    for parent in getattr(dataset, "parents", ()):
        yield from walk(parent)


def drops_elements(dataset: Node) -> bool:
    """Whether indices of a `MapDataset` may stand for no element at all."""
    return any(kind_of(node) in _DROP_ELEMENTS for node in walk(dataset))


def is_unbatched(dataset: Node) -> bool:
    """Whether it is plain that nothing in a pipeline makes batches."""
    transparent = _CHOOSE_BY_INDEX | _SOURCES | _DROP_ELEMENTS | _CHOOSE | _STREAM_SOURCES
    return all(kind_of(node) in transparent for node in walk(dataset))


class BatchStep:
    """What a batch node of Grain does, as far as it stacks examples and nothing else.

    Args:
        node: A `BatchMapDataset` or `BatchIterDataset`.
    """

    def __init__(self, node: Node) -> None:
        self.examples = node._parent
        self.size: int = node._batch_size
        self.drop_remainder: bool = node._drop_remainder
        self.stack: Callable[[Sequence[Any]], Batch] = node._batch_fn

    @property
    def only_stacks(self) -> bool:
        """Whether the examples are stacked by Grain itself, not by a function of the user's."""
        name = getattr(self.stack, "__name__", "")
        return name == "make_batch" and self.stack.__module__.startswith("grain.")

    @property
    def is_uniform(self) -> bool:
        """Whether every batch has `size` examples."""
        total = len(self.examples)
        return self.drop_remainder or total >= ENDLESS or total % self.size == 0


def batch_steps(dataset: Node) -> list[BatchStep] | None:
    """The batch nodes that the elements of a `MapDataset` come from, untouched.

    Returns:
        None if the elements pass through a function after they have been batched, or
        are not batched by Grain: then only a whole element is known to be right.
    """
    kind = kind_of(dataset)
    if kind == "BatchMapDataset":
        step = BatchStep(dataset)
        return [step] if step.only_stacks else None
    if kind not in _CHOOSE_BY_INDEX:
        return None
    steps: list[BatchStep] = []
    for parent in dataset.parents:
        of_parent = batch_steps(parent)
        if of_parent is None:
            return None
        steps += of_parent
    return steps


def reading_parts(dataset: Node, part_of: PartOf, blanks: dict[int, Batch]) -> Node:
    """The same `MapDataset` with `BatchPart` in place of every batch.

    Args:
        dataset: One of which `batch_steps` is not None.
        part_of: Which examples of a batch are read.
        blanks: Empty batches by batch node, filled as examples are seen.
    """
    if kind_of(dataset) == "BatchMapDataset":
        return _part_batch_class()(dataset, part_of, blanks)
    return with_parents(dataset, [reading_parts(p, part_of, blanks) for p in dataset.parents])


def with_parents(node: Node, parents: Sequence[Node]) -> Node:
    """A copy of a node that reads from other parents of the same length."""
    twin = copy.copy(node)
    twin._parents = tuple(parents)
    twin.__dict__.pop("_stats", None)  # they are linked to the parents' statistics
    return twin


@functools.cache
def _part_batch_class() -> type:
    """A batch node that fetches only some examples of each batch; made once Grain is there."""
    import grain

    class PartBatchMapDataset(grain.MapDataset):
        """Gives `BatchPart` where the batch node gave batches."""

        def __init__(self, node: Node, part_of: PartOf, blanks: dict[int, Batch]) -> None:
            self._step = BatchStep(node)
            super().__init__(self._step.examples)
            self._num_batches = len(node)
            self._part_of = part_of
            self._blanks = blanks
            self._key = id(node)

        def __len__(self) -> int:
            return self._num_batches

        def __getitem__(self, index: Any) -> Any:
            if isinstance(index, slice):
                return self.slice(index)
            # Batches never reach over the end of an epoch of the examples.
            epoch, index_in_epoch = divmod(index, self._num_batches)
            num_examples = len(self._step.examples)
            first = index_in_epoch * self._step.size
            size = min(num_examples - first, self._step.size)
            start, stop, _ = self._part_of(size).indices(size)
            offset = epoch * num_examples + first
            return BatchPart(self._batch(range(offset + start, offset + stop)), size)

        def _batch(self, indices: range) -> Batch:
            if not indices:
                return self._blank()
            batch = stacked([self._step.examples[i] for i in indices], self._step.stack)
            if self._key not in self._blanks:
                self._blanks[self._key] = _none_of(batch)
            return batch

        def _blank(self) -> Batch:
            if self._key not in self._blanks:
                batch = stacked([self._step.examples[0]], self._step.stack)
                self._blanks[self._key] = _none_of(batch)
            return self._blanks[self._key]

    return PartBatchMapDataset


@functools.cache
def _full_class() -> type:
    """A node that refuses to drop elements; made once Grain is there."""
    import grain

    class FullMapDataset(grain.MapDataset):
        """Its parent, with an error where an index has no element."""

        def __len__(self) -> int:
            return len(self.parents[0])

        def __getitem__(self, index: Any) -> Any:
            if isinstance(index, slice):
                return self.slice(index)
            element = self.parents[0][index]
            if element is None:
                raise BatchError(NO_ELEMENT)
            return element

    return FullMapDataset


def stacked(examples: list[Any], stack: Callable[[Sequence[Any]], Batch]) -> Batch:
    """A batch in buffers of its own.

    Raises:
        BatchError: If the examples are None or differ in shape or structure.
    """
    if any(example is None for example in examples):
        raise BatchError(NO_ELEMENT)
    try:
        batch = stack(examples)
    except ValueError as error:
        raise BatchError(
            "the examples of one batch of a Grain dataset cannot be stacked: "
            f"{elements.difference(examples)}. Pad them to one shape with map() before batch(), or "
            "pass batch_fn= to batch()."
        ) from error
    if len(examples) == 1:  # then Grain hands out a view of the example
        return jax.tree_util.tree_map(np.array, batch)
    return batch


def _none_of(batch: Batch) -> Batch:
    return jax.tree_util.tree_map(lambda leaf: np.asarray(leaf)[:0], batch)


def refusing_none(dataset: Node) -> Node:
    """The same `MapDataset`, with an error where an index has no element."""
    return _full_class()(dataset)


def read_options_of(chain: Node) -> Any:
    """The threads that a stream was given in `to_iter_dataset`, for its batches.

    Grain counts the buffer in elements of the `MapDataset`; here it is in what comes out
    of the chain, rounded up.
    """
    import grain

    elements = 1
    while kind_of(chain) != "PrefetchIterDataset":
        if kind_of(chain) == "BatchIterDataset":
            elements *= BatchStep(chain).size
        chain = chain.parents[0]
    options = chain._read_options
    return grain.ReadOptions(
        num_threads=options.num_threads,
        prefetch_buffer_size=-(-options.prefetch_buffer_size // elements),
    )


def as_map(stream: Node) -> Node | None:
    """The `MapDataset` with the elements of a stream, or None if the stream is no chain."""
    kind = kind_of(stream)
    if kind == "PrefetchIterDataset":
        return None if drops_elements(stream.parents[0]) else stream.parents[0]
    if kind not in _PASS_ON | {"BatchIterDataset", "MapIterDataset"}:
        return None
    parent = as_map(stream.parents[0])
    if parent is None or kind in _PASS_ON:
        return parent
    if kind == "MapIterDataset":
        return parent.map(stream._transform)
    step = BatchStep(stream)
    return parent.batch(step.size, drop_remainder=step.drop_remainder, batch_fn=step.stack)


def starting_at(chain: Node, start: int) -> Node:
    """A chain without its first elements, which are not read."""
    parent = chain.parents[0]
    if kind_of(chain) == "PrefetchIterDataset":
        return with_parents(chain, [refusing_none(parent[start:] if start else parent)])
    if kind_of(chain) == "BatchIterDataset":
        start *= BatchStep(chain).size
    return with_parents(chain, [starting_at(parent, start)])


def stream_batch_size(stream: Node) -> int | None:
    """The size of a full batch of a stream, if it says so."""
    while kind_of(stream) in _CHOOSE:
        stream = stream.parents[0]
    if kind_of(stream) == "RebatchIterDataset":
        return stream._batch_size
    if kind_of(stream) == "BatchIterDataset":
        step = BatchStep(stream)
        return step.size if step.only_stacks else None
    return None


def is_endless(stream: Node) -> bool:
    """Whether a stream is known never to end."""
    keeps_endless = _CHOOSE - {"LimitIterDataset", "FilterIterDataset"}
    while kind_of(stream) in keeps_endless | {"BatchIterDataset", "MapIterDataset"}:
        if kind_of(stream) == "RepeatIterDataset" and stream._num_epochs is None:
            return True
        stream = stream.parents[0]
    return kind_of(stream) == "PrefetchIterDataset" and len(stream.parents[0]) >= ENDLESS


def declared_spec(dataset: Node) -> Any | None:
    """The shapes and dtypes that Grain knows without reading, if it does."""
    try:
        return dataset._element_spec
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        return None


def stream_of_loader(loader: Any) -> Node:
    """The stream that a `grain.DataLoader` has made of its source and operations."""
    return loader._dataset


def operations_of_loader(loader: Any) -> Sequence[Any]:
    """What a `grain.DataLoader` does with the records, in order."""
    return loader._operations


def num_shards_of_loader(loader: Any) -> int:
    """Among how many readers a `grain.DataLoader` divides its records itself."""
    return loader._shard_options.shard_count


def is_endless_loader(loader: Any) -> bool:
    """Whether the sampler of a `grain.DataLoader` never ends."""
    length = getattr(loader._sampler, "__len__", None)
    return length is not None and length() >= ENDLESS
