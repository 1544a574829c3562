"""Plain Python: a list of batches, anything iterable, or a function that makes an iterator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from replicax.core.errors import BatchError, OneShotError
from replicax.input.adapters.host_batch import part_of_batch
from replicax.input.adapters.host_source import Convert, HostSource
from replicax.input.adapters.reading import Reading
from replicax.input.source import UNKNOWN, BatchPart, IndexedSource, PartOf, Source

_ADVICE = (
    "Yield batches: arrays, or nests of arrays, whose dim 0 counts the examples. If it is one "
    "array of examples, pass it as a NumPy array with batch_size=."
)


def source_of(dataset: Any) -> Source:
    """A source of the batches that `dataset` yields.

    Raises:
        BatchError: If it is neither iterable nor a function without arguments.
    """
    if isinstance(dataset, Sequence) and not isinstance(dataset, (str, bytes)):
        return BatchListSource(dataset)
    if isinstance(dataset, Iterator):
        return OneShotSource(dataset)
    if isinstance(dataset, Iterable) or hasattr(dataset, "__getitem__"):
        return IterableSource(dataset)
    if callable(dataset):
        _require_no_arguments(dataset)
        return IterableSource(_EachTime(dataset))
    raise BatchError(
        f"{dataset!r} cannot be distributed as a dataset; expected a pipeline of batches: a Grain, "
        "tf.data, torch, Hugging Face or Keras dataset, arrays with batch_size=, an iterable of "
        "batches, or a function that makes one."
    )


def _require_no_arguments(function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise BatchError(
            f"the function {_name(function)} was given as a dataset, and cannot be called without "
            f"arguments ({error}). Bind them first: functools.partial({_name(function)}, ...)."
        ) from None
    except ValueError:  # a builtin that has no signature; calling it will tell
        return


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))


class _EachTime:
    """An iterable that calls a function for each iterator."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __iter__(self) -> Iterator[Any]:
        made = self._function()
        if isinstance(made, Iterable):
            return iter(made)
        raise BatchError(
            f"the function {_name(self._function)}, given as a dataset, returned {made!r}; "
            "expected an iterable of batches. Yield them, or return a list of them."
        )


class IterableSource(HostSource):
    """Reads anything that can be iterated again and again.

    Args:
        batches: The iterable.

    Example:
        >>> source = IterableSource({1: None, 2: None})
        >>> source.cardinality
        2
    """

    description = "an iterable of batches"
    advice = _ADVICE

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    @property
    def cardinality(self) -> int:
        """Its length, if it has one."""
        return len(self._batches) if hasattr(self._batches, "__len__") else UNKNOWN

    def _read(self, convert: Convert, *, epoch: int, start: int) -> Iterator[Any]:
        """Iterates anew and passes over `start` batches; `epoch` changes nothing."""
        return Reading(iter(self._batches), convert, skip=start)


class BatchListSource(HostSource, IndexedSource):
    """Reads a list of batches.

    Args:
        batches: The list, or any other sequence.

    Example:
        >>> [batch.tolist() for batch in BatchListSource([[1, 2], [3]]).open(epoch=0, start=1)]
        [[3]]
    """

    description = "a list of batches"
    advice = _ADVICE

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches

    @property
    def cardinality(self) -> int:
        """The length of the list."""
        return len(self._batches)

    def _read(self, convert: Convert, *, epoch: int, start: int) -> Iterator[Any]:
        """Reads from position `start` on; `epoch` changes nothing."""
        indices = iter(range(start, len(self._batches)))
        return Reading(indices, lambda index: convert(self._batches[index]))

    def open_parts(self, part_of: PartOf, *, epoch: int, start: int) -> Iterator[BatchPart]:
        """Cuts the batches from position `start` on; `epoch` changes nothing."""
        return self._read(
            lambda element: part_of_batch(
                self._batch(element), part_of, description=self.description
            ),
            epoch=epoch,
            start=start,
        )


class OneShotSource(HostSource):
    """Reads an iterator, which can be done once.

    Args:
        batches: The iterator.

    Example:
        >>> source = OneShotSource(iter([[1, 2]]))
        >>> [batch.tolist() for batch in source.open(epoch=0, start=0)]
        [[1, 2]]
        >>> source.open(epoch=1, start=0)
        Traceback (most recent call last):
        ...
        replicax.core.errors.OneShotError: a list_iterator serves one pass only, and that has been \
read. Pass the function that makes it, or the collection itself, instead of the iterator.
    """

    description = "an iterator of batches"
    advice = _ADVICE

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches: Iterator[Any] | None = batches
        self._name = type(batches).__name__

    def _read(self, convert: Convert, *, epoch: int, start: int) -> Iterator[Any]:
        """Hands the iterator out, the first time.

        Raises:
            OneShotError: Every other time.
        """
        batches, self._batches = self._batches, None
        if batches is None:
            raise OneShotError(
                f"a {self._name} serves one pass only, and that has been read. Pass the function "
                "that makes it, or the collection itself, instead of the iterator."
            )
        return Reading(batches, convert, skip=start)
