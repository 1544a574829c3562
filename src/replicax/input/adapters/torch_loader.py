"""torch's `DataLoader`, with its tensors as NumPy arrays.

Every pass reads a copy of the loader, so that passes do not share workers. Random order
and the seeds of workers come from a generator that each pass gets anew, seeded by the
loader's own (or torch's) seed and the number of the pass: the same pass is always the
same. Worker processes are spawned; a fork of a process in which JAX has threads can hang.
"""

from __future__ import annotations

import copy
import importlib
import itertools
from collections.abc import Iterator
from typing import Any

from replicax.core.errors import BatchError
from replicax.input.adapters.host_source import Convert, HostSource
from replicax.input.adapters.reading import Reading
from replicax.input.source import UNKNOWN, Source


def source_of(loader: Any) -> Source:
    """A source of the batches of a `torch.utils.data.DataLoader`.

    Raises:
        BatchError: If the loader is told to fork its workers.
    """
    context = loader.multiprocessing_context
    if context is not None and _start_method(context) == "fork":
        raise BatchError(
            "a torch DataLoader is told to fork its workers (multiprocessing_context='fork'), "
            "which can hang once JAX has started. Use multiprocessing_context='spawn'."
        )
    return TorchSource(loader)


def _start_method(context: Any) -> str | None:
    return context if isinstance(context, str) else context.get_start_method()


class TorchSource(HostSource):
    """Reads a `torch.utils.data.DataLoader`.

    Args:
        loader: The loader.
    """

    description = "a torch DataLoader"
    advice = "Give the loader a batch size: DataLoader(dataset, batch_size=global_batch_size)."

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._has_indices = hasattr(loader.dataset, "__getitem__") and not _is_stream(loader)

    @property
    def cardinality(self) -> int:
        """The length of the loader, unless its dataset is a stream."""
        return len(self._loader) if self._has_indices else UNKNOWN

    @property
    def batch_size(self) -> int | None:
        """As given to the loader, or to its batch sampler."""
        size = self._loader.batch_size
        return size if size is not None else getattr(self._loader.batch_sampler, "batch_size", None)

    def _why_unbatched(self) -> str | None:
        if self._loader.batch_sampler is not None:
            return None
        return (
            "a torch DataLoader with batch_size=None gives its dataset's elements as they are. If "
            "they are batches already, pass a function: lambda: iter(loader)."
        )

    def _read(self, convert: Convert, *, epoch: int, start: int) -> Iterator[Any]:
        """Reads a copy of the loader; the examples of the first `start` batches are not fetched.

        A stream, which has no indices, is read and passed over.
        """
        loader = self._copy(epoch, start)
        return Reading(_Closable(iter(loader)), convert, skip=0 if self._has_indices else start)

    def _copy(self, epoch: int, start: int) -> Any:
        torch: Any = importlib.import_module("torch")
        loader = copy.copy(self._loader)
        given = loader.generator
        generator = torch.Generator()
        generator.manual_seed((given.initial_seed() if given else torch.initial_seed()) + epoch)
        changes: dict[str, Any] = {"generator": generator, "_iterator": None}
        if self._has_indices:
            name = "sampler" if loader.batch_sampler is None else "batch_sampler"
            changes[name] = _Indices(getattr(loader, name), generator, epoch, start)
        # DataLoader refuses to have its sampler set after it was made, which this copy just was.
        loader.__dict__.update(changes)
        if loader.num_workers > 0 and loader.multiprocessing_context is None:
            loader.multiprocessing_context = "spawn"
        return loader


def _is_stream(loader: Any) -> bool:
    return any(base.__name__ == "IterableDataset" for base in type(loader.dataset).__mro__)


class _Indices:
    """What a sampler, or a batch sampler, chooses in one pass, without the first choices."""

    def __init__(self, sampler: Any, generator: Any, epoch: int, start: int) -> None:
        self._sampler = _of_epoch(sampler, generator, epoch)
        self._start = start

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self._sampler), self._start, None)

    def __len__(self) -> int:
        return max(0, len(self._sampler) - self._start)


def _of_epoch(sampler: Any, generator: Any, epoch: int) -> Any:
    """A copy of a sampler that is seeded and told the epoch, as far as it can be."""
    sampler = copy.copy(sampler)
    if hasattr(sampler, "generator"):
        sampler.generator = generator
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    if hasattr(sampler, "sampler"):
        sampler.sampler = _of_epoch(sampler.sampler, generator, epoch)
    return sampler


class _Closable(Iterator[Any]):
    """torch's iterator, with a `close` that ends its workers."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __next__(self) -> Any:
        return next(self._batches)

    def close(self) -> None:
        shutdown = getattr(self._batches, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()
