"""`Dataset`: the documented dataset methods, each of which adds a step to the pipeline."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import jax
import numpy as np

from replicax.core import companions
from replicax.input.pipeline import (
    arguments,
    batching,
    elements,
    functions,
    holding,
    selection,
    shuffling,
    sources,
)
from replicax.input.pipeline.iterator import DatasetIterator
from replicax.input.pipeline.missing import missing_method
from replicax.input.pipeline.options import Options
from replicax.input.pipeline.stage import Stage
from replicax.input.source import INFINITE, UNKNOWN

AUTOTUNE = -1
"""Leaves the number of threads, or of elements read ahead, to Replicax."""

INFINITE_CARDINALITY = INFINITE
"""The cardinality of a dataset that never ends."""

UNKNOWN_CARDINALITY = UNKNOWN
"""The cardinality of a dataset that has to be read to be counted."""

_CYCLE_LENGTH = 8  # fixed, so that the order is the same on every machine
_PREFETCH = 2


class _DatasetType(type):
    """Says what to use instead of a class attribute that is not there."""

    def __getattr__(cls, name: str) -> NoReturn:
        raise missing_method(name)


class Dataset(metaclass=_DatasetType):
    """A pipeline of elements: nests of host arrays, read when it is iterated.

    A transformation returns a new dataset and reads nothing. As long as elements can be
    found by index (slices, ranges, and what maps, shuffles, batches, repeats, chooses, joins
    or caches them) nothing else is needed: in a distributed run each
    worker computes only its own elements. After a generator, files, `filter`, `unbatch` or
    `interleave` it is a stream, a `grain.IterDataset`.

    Every ``iter()`` of a dataset is a pass of its own, counted from 0; where `shuffle` gives
    each pass another order, the order depends on the seed and the number of the pass only.

    Python ints become int64, floats float32, strings bytes; arrays keep their dtype. Only
    `from_tensor_slices` copies the arrays that it is given, if they are not large: do not write
    to others while the dataset is in use.

    Example:
        >>> dataset = Dataset.range(5).map(lambda x: x * x).batch(2)
        >>> list(dataset)
        [array([0, 1]), array([4, 9]), array([16])]
        >>> dataset.element_spec
        TensorSpec(shape=(None,), dtype=int64, name=None)
    """

    def __init__(self, stage: Stage) -> None:
        """Wraps a pipeline; use `from_tensor_slices` and the like to make one."""
        if not isinstance(stage, Stage):
            raise TypeError(
                f"Dataset got {type(stage).__name__}; make one with Dataset.from_tensor_slices, "
                "Dataset.from_tensors, Dataset.from_generator or Dataset.range."
            )
        self._stage = stage
        self._passes = itertools.count()
        companions.connect()  # Keras reads it, also outside of every scope

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):  # a property that raised an AttributeError of its own
            return object.__getattribute__(self, name)
        raise missing_method(name)

    @staticmethod
    def from_tensor_slices(tensors: Any, name: str | None = None) -> Dataset:
        """The rows of arrays: element i has row i of every array.

        The arrays are copied now, so that later changes of them are not seen. If all together
        have more than 1 GiB, or one is mapped from a file, they are read where they are.

        Args:
            tensors: An array or a nest of arrays of one length. A list is one array,
                tuples and dicts are structure.
            name: Accepted.

        Returns:
            The dataset.

        Raises:
            BatchError: If the arrays differ in length, or one has no dims.
        """
        return Dataset(sources.slices_of(tensors))

    @staticmethod
    def from_tensors(tensors: Any, name: str | None = None) -> Dataset:
        """One element.

        Args:
            tensors: The element, a nest of arrays.
            name: Accepted.

        Returns:
            The dataset.
        """
        element = elements.as_element(tensors, what="tensors")
        return Dataset(sources.Single(element=elements.read_only(element)))

    @staticmethod
    def from_generator(
        generator: Callable[..., Iterable[Any]],
        output_types: Any = None,
        output_shapes: Any = None,
        args: tuple[Any, ...] | None = None,
        output_signature: Any = None,
        name: str | None = None,
    ) -> Dataset:
        """What a function yields; it is called once for every pass.

        Args:
            generator: Returns an iterable.
            output_types: The dtypes, a nest like the elements. Older than `output_signature`.
            output_shapes: The shapes that go with them.
            args: What `generator` is called with.
            output_signature: A nest of `TensorSpec`. Elements are converted to its dtypes,
                and their shapes checked. Without it, `element_spec` reads one element.
            name: Accepted.

        Returns:
            The dataset.

        Raises:
            TypeError: If `generator` is not callable.
        """
        if not callable(generator):
            raise TypeError(
                f"from_generator got {generator!r}; expected a function that returns an iterator, "
                "because every pass begins anew: pass lambda: my_iterator()."
            )
        signature = arguments.signature_of(output_signature, output_types, output_shapes)
        stage = sources.Generated(generator=generator, args=tuple(args or ()), signature=signature)
        return Dataset(stage)

    @staticmethod
    def range(*args: int, output_type: Any = np.int64, name: str | None = None) -> Dataset:
        """Whole numbers, as Python's ``range`` counts them.

        Args:
            *args: ``stop``, or ``start, stop``, or ``start, stop, step``.
            output_type: Their dtype.
            name: Accepted.

        Returns:
            The dataset.
        """
        values = range(*(int(arg) for arg in args))
        return Dataset(sources.Numbers(values=values, dtype=np.dtype(output_type)))

    @staticmethod
    def zip(*args: Any, datasets: Any = None, name: str | None = None) -> Dataset:
        """Elements of several datasets side by side; the shortest ends it.

        Args:
            *args: Datasets, or one nest (tuple, dict) of datasets.
            datasets: The nest, by name.
            name: Accepted.

        Returns:
            The dataset.

        Raises:
            TypeError: If there is anything but datasets.
        """
        nested = datasets if datasets is not None else args[0] if len(args) == 1 else args
        leaves, structure = jax.tree_util.tree_flatten(
            nested, is_leaf=lambda x: isinstance(x, (Dataset, list))
        )
        for leaf in leaves or [nested]:
            if not isinstance(leaf, Dataset):
                raise TypeError(
                    f"zip got {type(leaf).__name__} {leaf!r}; expected datasets, or a tuple or "
                    "dict of datasets. Make one of arrays with Dataset.from_tensor_slices."
                )
        return Dataset(
            selection.Zip(inputs=tuple(leaf._stage for leaf in leaves), structure=structure)
        )

    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """A function of every element; the parts of a tuple are its arguments.

        The function is ordinary Python on host arrays, `jax.numpy` included; its result
        becomes host arrays. Reading `element_spec` calls it on one element.

        Args:
            map_func: The function.
            num_parallel_calls: How many of Grain's threads call it. On a stream one thread
                runs that many elements ahead. The order stays.
            deterministic: Accepted; the order is always kept.
            name: Accepted.

        Returns:
            The new dataset.

        Raises:
            TypeError: If `map_func` is not callable.
            BatchError: If `num_parallel_calls` is not a number of threads.
        """
        arguments.check_callable(map_func, "map")
        threads = arguments.num_threads(num_parallel_calls)
        return self._then(functions.Map, fn=map_func, num_threads=threads)

    def filter(self, predicate: Callable[..., Any], name: str | None = None) -> Dataset:
        """The elements for which `predicate` is true.

        Args:
            predicate: Called like the function of `map`; returns a bool.
            name: Accepted.

        Returns:
            The new dataset.

        Raises:
            TypeError: If `predicate` is not callable.
        """
        arguments.check_callable(predicate, "filter")
        return self._then(functions.Filter, predicate=predicate)

    def shuffle(
        self,
        buffer_size: int,
        seed: int | None = None,
        reshuffle_each_iteration: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """The same elements in another order, every one exactly once.

        Args:
            buffer_size: Elements are mixed within consecutive windows of so many; with the
                size of the dataset or more, all of them are. The cardinality of a dataset
                may be passed as it is.
            seed: Where the order comes from. None is a fixed seed: the order is the same
                on every worker and in every run.
            reshuffle_each_iteration: Whether every pass, also each of `repeat`, has another
                order. None means True.
            name: Accepted.

        Returns:
            The new dataset.

        Raises:
            BatchError: If `buffer_size` is less than 1.
        """
        return self._then(
            shuffling.Shuffle,
            buffer_size=arguments.buffer_size(buffer_size, "shuffle", least=1),
            seed=shuffling.DEFAULT_SEED if seed is None else int(seed),
            reshuffles=reshuffle_each_iteration is not False,
        )

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Consecutive elements stacked along a new dim 0.

        Args:
            batch_size: How many; for a distributed dataset the global batch size.
            drop_remainder: Whether to leave out a last batch that is not full.
            num_parallel_calls: Accepted; use it with `map`.
            deterministic: Accepted.
            name: Accepted.

        Returns:
            The new dataset.

        Raises:
            BatchError: If `batch_size` is less than 1.
        """
        size = arguments.batch_size(batch_size, "batch")
        return self._then(batching.Batch, batch_size=size, drop_remainder=bool(drop_remainder))

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Batches of elements of several shapes, filled up to one shape.

        Args:
            batch_size: How many elements.
            padded_shapes: A nest of shapes like the elements; None or -1 for a dim fills it
                up to the largest of the batch, None for all does so everywhere.
            padding_values: What is filled in, one value or a nest of them; zeros and empty
                strings by default.
            drop_remainder: Whether to leave out a last batch that is not full.
            name: Accepted.

        Returns:
            The new dataset.

        Raises:
            BatchError: If `batch_size` is less than 1.
        """
        return self._then(
            batching.PaddedBatch,
            batch_size=arguments.batch_size(batch_size, "padded_batch"),
            drop_remainder=bool(drop_remainder),
            padded_shapes=padded_shapes,
            padding_values=padding_values,
        )

    def unbatch(self, name: str | None = None) -> Dataset:
        """The rows of every element, one by one.

        Args:
            name: Accepted.

        Returns:
            The new dataset.
        """
        return self._then(batching.Unbatch)

    def repeat(self, count: int | None = None, name: str | None = None) -> Dataset:
        """Pass after pass; None or -1 never ends, unless there are no elements.

        Args:
            count: How many passes.
            name: Accepted.

        Returns:
            The new dataset.

        Raises:
            BatchError: If `count` is less than -1.
        """
        if count is None or count == -1:
            return self._then(selection.Repeat, times=None)
        if arguments.count(count, "repeat") == 0:
            return self.take(0)
        return self._then(selection.Repeat, times=int(count))

    def take(self, count: int, name: str | None = None) -> Dataset:
        """The first `count` elements; -1 takes all.

        Args:
            count: How many elements.
            name: Accepted.

        Returns:
            The new dataset.

        Raises:
            BatchError: If `count` is less than -1.
        """
        if count == -1:
            return self
        return self._then(selection.Slice, stop=arguments.count(count, "take"))

    def skip(self, count: int, name: str | None = None) -> Dataset:
        """The elements after the first `count`; -1 skips all.

        Args:
            count: How many elements.
            name: Accepted.

        Returns:
            The new dataset.

        Raises:
            BatchError: If `count` is less than -1.
        """
        if count == -1:
            return self.take(0)
        return self._then(selection.Slice, start=arguments.count(count, "skip"))

    def shard(self, num_shards: int, index: int, name: str | None = None) -> Dataset:
        """Every `num_shards`-th element, from number `index` on.

        Args:
            num_shards: Into how many parts the dataset is divided.
            index: Which of them to take, from 0.
            name: Accepted.

        Returns:
            The new dataset.

        Raises:
            ValueError: If there is no such part.
        """
        if num_shards < 1 or not 0 <= index < num_shards:
            raise ValueError(
                f"shard got num_shards={num_shards}, index={index}; expected at least 1 shard and "
                "an index from 0 to num_shards - 1."
            )
        return self._then(selection.Slice, start=int(index), step=int(num_shards))

    def concatenate(self, dataset: Dataset, name: str | None = None) -> Dataset:
        """The elements of this dataset, then those of `dataset`.

        Args:
            dataset: What follows.
            name: Accepted.

        Returns:
            The new dataset.

        Raises:
            TypeError: If it is not a `Dataset`.
        """
        if not isinstance(dataset, Dataset):
            raise TypeError(
                f"concatenate got {type(dataset).__name__}; expected a Dataset. Make one of arrays "
                "with Dataset.from_tensor_slices."
            )
        return Dataset(selection.Concatenate(inputs=(self._stage, dataset._stage)))

    def interleave(
        self,
        map_func: Callable[..., Any],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """The elements of the datasets that `map_func` makes, in turns.

        Args:
            map_func: From an element to a `Dataset`.
            cycle_length: How many datasets are read in turns; 8 if it is left out.
            block_length: How many elements are taken in a turn.
            num_parallel_calls: If given, a thread for every open dataset reads ahead.
            deterministic: Accepted; the order is always the same.
            name: Accepted.

        Returns:
            The new dataset.

        Raises:
            TypeError: If `map_func` is not callable.
            BatchError: If `cycle_length` or `block_length` is less than 1.
        """
        arguments.check_callable(map_func, "interleave")
        cycle = _CYCLE_LENGTH if cycle_length in (None, AUTOTUNE) else cycle_length
        threads = arguments.num_threads(num_parallel_calls)
        block = arguments.batch_size(block_length or 1, "interleave", "block_length")

        def stage_of(element: elements.Element) -> Stage:
            made = elements.call(map_func, element)
            if isinstance(made, Dataset):
                return made._stage
            raise TypeError(
                f"the function given to interleave or flat_map returned {type(made).__name__}; "
                "expected a Dataset. Use map for a function that returns an element."
            )

        return self._then(
            functions.Interleave,
            stage_of=stage_of,
            cycle_length=arguments.batch_size(cycle, "interleave", "cycle_length"),
            block_length=block,
            read_ahead_size=block if threads else 0,
        )

    def flat_map(self, map_func: Callable[..., Any], name: str | None = None) -> Dataset:
        """The elements of the datasets that `map_func` makes, one dataset after another.

        Args:
            map_func: From an element to a `Dataset`.
            name: Accepted.

        Returns:
            The new dataset.
        """
        return self.interleave(map_func, cycle_length=1)

    def enumerate(self, start: int = 0, name: str | None = None) -> Dataset:
        """Every element in a pair with its number, counted from `start` in every pass.

        Args:
            start: The first number.
            name: Accepted.

        Returns:
            The new dataset.
        """
        return self._then(functions.Enumerate, start=int(start))

    def cache(self, filename: str = "", name: str | None = None) -> Dataset:
        """Keeps the elements in memory once they have been read.

        What was random or shuffled before it stays as it was in the first pass. A stream is
        kept once a pass over it has reached the end.

        Args:
            filename: Must be empty.
            name: Accepted.

        Returns:
            The new dataset.

        Raises:
            ValueError: If there is a file name.
        """
        if filename:
            raise ValueError(
                f"cache got the file name {filename!r}; elements are cached in memory only. Call "
                "cache() without it, or write the elements to files once and read those."
            )
        return self._then(holding.Cache)

    def prefetch(self, buffer_size: int, name: str | None = None) -> Dataset:
        """Makes elements ready ahead of time, in a thread of Grain's.

        Args:
            buffer_size: How many; `AUTOTUNE` chooses.
            name: Accepted.

        Returns:
            The new dataset.

        Raises:
            BatchError: If `buffer_size` is less than 0.
        """
        size = _PREFETCH if buffer_size == AUTOTUNE else buffer_size
        return self._then(holding.Prefetch, buffer_size=arguments.count(size, "prefetch"))

    def with_options(self, options: Options, name: str | None = None) -> Dataset:
        """Attaches a copy of `options`; what they set replaces what was set before.

        Args:
            options: The options.
            name: Accepted.

        Returns:
            The new dataset.

        Raises:
            TypeError: If they are not `Options`.
        """
        if not isinstance(options, Options):
            raise TypeError(f"with_options got {options!r}; expected data.Options.")
        return self._then(holding.WithOptions, options=Options().merge(options))

    def options(self) -> Options:
        """A copy of the options attached to this dataset and to those that it reads."""
        return holding.options_of(self._stage)

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        """What a function makes of this dataset.

        Args:
            transformation_func: From this dataset to another.

        Returns:
            What it returns.

        Raises:
            TypeError: If that is not a `Dataset`.
        """
        made = transformation_func(self)
        if not isinstance(made, Dataset):
            raise TypeError(
                f"the function given to apply returned {type(made).__name__}; expected a Dataset."
            )
        return made

    def reduce(
        self, initial_state: Any, reduce_func: Callable[[Any, Any], Any], name: str | None = None
    ) -> Any:
        """Combines all elements: ``state = reduce_func(state, element)`` for each in turn.

        Args:
            initial_state: What the first call gets, a nest of arrays.
            reduce_func: Called with the state and the whole element.
            name: Accepted.

        Returns:
            The last state, host arrays.

        Raises:
            ValueError: If the dataset is endless.
        """
        if self.cardinality() == INFINITE:
            raise ValueError("reduce would never end on an endless dataset. Use take(count) first.")
        state = elements.as_element(initial_state, what="initial_state")
        for element in self:
            state = reduce_func(elements.outward(state), element)
            state = elements.as_element(state, what="the result of reduce_func")
        return elements.outward(state)

    @property
    def element_spec(self) -> Any:
        """A nest of `TensorSpec` like the elements.

        Functions given to `map` are called on one element, once, and the shapes are those of
        their results; a generator without a signature is asked for one element. A dim that
        may differ between elements, such as that of a last batch, is None.
        """
        return self._stage.spec

    def cardinality(self) -> int:
        """How many elements a pass has, `INFINITE_CARDINALITY` or `UNKNOWN_CARDINALITY`."""
        return self._stage.count

    def as_numpy_iterator(self) -> Iterator[Any]:
        """The elements of a pass, which are NumPy arrays already."""
        return iter(self)

    def __iter__(self) -> DatasetIterator:
        return DatasetIterator._of_pass(self._stage, next(self._passes))

    def __len__(self) -> int:
        count = self._stage.count
        if count == INFINITE:
            raise TypeError("the dataset is endless, so it has no len(). Use take(count) first.")
        if count == UNKNOWN:
            raise TypeError(
                "the length of the dataset is not known before it is read, so it has no len(). "
                "Count its elements with reduce(0, lambda count, element: count + 1)."
            )
        return count

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {type(self._stage).__name__}, {self._length_text()}>"

    def _length_text(self) -> str:
        count = self._stage.count
        names = {INFINITE: "endless", UNKNOWN: "of unknown length"}
        return names.get(count, f"{count} elements")

    def _then(self, stage: Callable[..., Stage], **settings: Any) -> Dataset:
        return Dataset(stage(inputs=(self._stage,), **settings))
