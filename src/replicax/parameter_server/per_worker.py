"""Values that are another one on each worker: datasets, their iterators, and plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.core import nest
from replicax.core.errors import ContextError
from replicax.parameter_server.messages import DatasetSpec
from replicax.parameter_server.tracing import ElementKey, WorkerKey, closure_trace, require_closure
from replicax.parameter_server.worker import current_worker

if TYPE_CHECKING:
    from replicax.parameter_server.coordinator import ClusterCoordinator


class PerWorkerValues:
    """A value for each worker; a closure gets the one of the worker that runs it.

    Args:
        values: A nest of arrays or numbers for each worker, all of one structure.

    Example:
        >>> import replicax as rx
        >>> cluster = rx.cluster_resolver.SimpleClusterResolver({"ps": ["a:1"], "worker": ["b:1"]})
        >>> coordinator = rx.coordinator.ClusterCoordinator(rx.ParameterServerStrategy(cluster))
        >>> coordinator.schedule(lambda x: x + 1, args=(PerWorkerValues([41]),)).fetch()
        array(42, dtype=int32)
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = tuple(values)

    def __repr__(self) -> str:
        return f"PerWorkerValues({list(self._values)!r})"


class PerWorkerDataset:
    """A dataset on each worker; made by ``ClusterCoordinator.create_per_worker_dataset``.

    Example:
        >>> import replicax as rx
        >>> cluster = rx.cluster_resolver.SimpleClusterResolver({"ps": ["a:1"], "worker": ["b:1"]})
        >>> coordinator = rx.coordinator.ClusterCoordinator(rx.ParameterServerStrategy(cluster))
        >>> dataset = coordinator.create_per_worker_dataset(lambda: [1.0, 2.0])
        >>> dataset.element_spec
        ShapeDtypeStruct(shape=(), dtype=float32)
    """

    def __init__(
        self, coordinator: ClusterCoordinator, dataset_id: int, dataset_fn: Callable[[], Any]
    ) -> None:
        """The dataset of this number."""
        self._coordinator = coordinator
        self._dataset_id = dataset_id
        self._dataset_fn = dataset_fn

    def __iter__(self) -> PerWorkerIterator:
        """A pass over the dataset of each worker, to be passed to closures."""
        return self._coordinator._new_iterator(self._dataset_id)

    @property
    def element_spec(self) -> Any:
        """What an element looks like: a nest of ``jax.ShapeDtypeStruct``."""
        return _structs(self._coordinator._dataset_spec(self._dataset_id))


class PerWorkerIterator(Iterator[Any]):
    """An iterator on each worker: ``next`` in a closure gives the next element of its worker.

    Example:
        >>> import replicax as rx
        >>> cluster = rx.cluster_resolver.SimpleClusterResolver({"ps": ["a:1"], "worker": ["b:1"]})
        >>> coordinator = rx.coordinator.ClusterCoordinator(rx.ParameterServerStrategy(cluster))
        >>> iterator = iter(coordinator.create_per_worker_dataset(lambda: [1.0, 2.0]))
        >>> values = [coordinator.schedule(next, args=(iterator,)) for _ in range(2)]
        >>> sorted(coordinator.fetch(value).item() for value in values)
        [1.0, 2.0]
    """

    def __init__(self, strategy: Any, iterator_id: int, spec: DatasetSpec) -> None:
        """The iterator of this number."""
        self._strategy = strategy
        self._iterator_id = iterator_id
        self._spec = spec

    def __iter__(self) -> PerWorkerIterator:
        return self

    def __next__(self) -> Any:
        """The next element of the worker that runs the closure.

        Raises:
            ContextError: Outside of a closure, where there is no worker.
        """
        trace = require_closure(self._strategy, "next of a per-worker iterator")
        turn = trace.turns.get(self._iterator_id, 0)
        trace.turns[self._iterator_id] = turn + 1
        leaves = []
        for leaf, (shape, dtype) in enumerate(
            zip(self._spec.shapes, self._spec.dtypes, strict=True)
        ):
            shape = trace.shapes.get((self._iterator_id, turn, leaf), shape)
            name = f"leaf {leaf} of an element of a dataset"
            key = ElementKey(name, shape, jnp.dtype(dtype), self._iterator_id, turn, leaf)
            leaves.append(trace.frame.read(key))
        return nest.map_leaves(lambda leaf: leaves[leaf], self._spec.structure)


def _structs(spec: DatasetSpec) -> Any:
    return nest.map_leaves(
        lambda leaf: jax.ShapeDtypeStruct(spec.shapes[leaf], jnp.dtype(spec.dtypes[leaf])),
        spec.structure,
    )


def experimental_get_current_worker_index() -> Any:
    """The number of the worker that runs this closure, or makes this dataset.

    Returns:
        In a closure a traced int32, in a `dataset_fn` an int.

    Raises:
        ContextError: Anywhere else.

    Example:
        >>> import replicax as rx
        >>> cluster = rx.cluster_resolver.SimpleClusterResolver({"ps": ["a:1"], "worker": ["b:1"]})
        >>> coordinator = rx.coordinator.ClusterCoordinator(rx.ParameterServerStrategy(cluster))
        >>> coordinator.schedule(experimental_get_current_worker_index).fetch()
        array(0, dtype=int32)
    """
    index = current_worker()
    if index is not None:
        return index
    trace = closure_trace()
    if trace is None:
        raise ContextError(
            "experimental_get_current_worker_index was called where there is no worker. Call it in "
            "a function that a ClusterCoordinator schedules, or in a dataset_fn."
        )
    return trace.frame.read(WorkerKey("the number of the worker", (), np.dtype(np.int32)))
