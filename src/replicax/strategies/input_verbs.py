"""What a strategy does with input: datasets in, per-replica values out.

`InputVerbs` are the methods of every `Strategy`, `ExtendedInput` what one strategy
may do differently. What happens to the data is in `replicax.input`, which knows
no strategy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from replicax.context import stack
from replicax.core import notices
from replicax.core.enums import AutoShardPolicy, InputReplicationMode
from replicax.core.errors import ReplicationModeError
from replicax.core.options import InputOptions
from replicax.input import from_function
from replicax.input.adapters.table import dataset_of_slices, source_of
from replicax.input.context import InputContext
from replicax.input.dataset import DistributedDataset
from replicax.input.from_function import PerReplicaBatches
from replicax.input.global_batches import GlobalBatches
from replicax.input.iterator import DistributedIterator
from replicax.input.sharding import parse_policy, plan_shards
from replicax.input.source import Source
from replicax.input.topology import InputTopology
from replicax.strategies.prediction import Prediction

_PER_REPLICA = InputReplicationMode.PER_REPLICA

DatasetFn = Callable[[InputContext], Any]


class ExtendedInput:
    """How the replicas of a strategy get their input."""

    mesh: Any

    @property
    def _input_topology(self) -> InputTopology:
        """The workers that read input, and the replicas each of them feeds."""
        return InputTopology(replicas_per_worker=self.mesh.num_replicas)

    def _distribute_dataset(
        self,
        dataset: Any,
        options: InputOptions,
        *,
        batch_size: int | None,
        auto_shard_policy: AutoShardPolicy | None,
    ) -> DistributedDataset:
        """A dataset of global batches, divided among the replicas."""
        if options.experimental_replication_mode is _PER_REPLICA:
            raise ReplicationModeError(
                "InputReplicationMode.PER_REPLICA needs a dataset for each replica; "
                "distribute_dataset has one for all. Use distribute_datasets_from_function."
            )
        topology = self._input_topology
        source = _source_of(dataset, batch_size=batch_size)
        plan = plan_shards(auto_shard_policy, source, topology)
        return DistributedDataset(GlobalBatches(plan, topology), self.mesh, topology, options)

    def _distribute_datasets_from_function(
        self, dataset_fn: DatasetFn, options: InputOptions
    ) -> DistributedDataset:
        """Datasets of per-replica batches, made by ``dataset_fn``."""
        topology = self._input_topology
        per_replica = options.experimental_replication_mode is _PER_REPLICA
        devices = None
        if options.experimental_place_dataset_on_device:
            devices = [self.mesh.devices[replica] for replica in topology.local_replicas]
        contexts = from_function.input_contexts(topology, per_replica=per_replica)
        sources = []
        for place, context in enumerate(contexts):
            with contextlib.ExitStack() as where:
                if devices is not None:
                    where.enter_context(jax.default_device(devices[place]))
                sources.append(from_function.source_from(dataset_fn, context, _source_of))
        reading = PerReplicaBatches(sources, topology, per_replica=per_replica, devices=devices)
        return DistributedDataset(reading, self.mesh, topology, options)

    def experimental_make_numpy_dataset(self, numpy_input: Any, session: Any = None) -> Any:
        """Deprecated: a dataset of the slices of arrays; `session` means nothing here.

        Args:
            numpy_input: An array, or a tuple or dict of arrays; a list of arrays is
                stacked into one.
            session: Ignored: there are no sessions.

        Returns:
            A dataset with one element for each row.
        """
        del session
        instead = "data.Dataset.from_tensor_slices"
        notices.deprecate("experimental_make_numpy_dataset", instead)
        arrays = jax.tree_util.tree_map(
            np.asarray, numpy_input, is_leaf=lambda node: isinstance(node, list)
        )
        return dataset_of_slices(arrays)


def _source_of(dataset: Any, *, batch_size: int | None = None) -> Source:
    if isinstance(dataset, (DistributedDataset, DistributedIterator)):
        raise TypeError(
            f"the dataset is a {type(dataset).__name__}, which is distributed already. Iterate "
            "over it, or distribute the pipeline that it was made from."
        )
    if isinstance(dataset, Source) and batch_size is None:
        return dataset
    return source_of(dataset, batch_size=batch_size)


class InputVerbs:
    """The methods of `Strategy` that concern input."""

    extended: Any

    def distribute_dataset(
        self,
        dataset: Any,
        options: InputOptions | None = None,
        *,
        batch_size: int | None = None,
        auto_shard_policy: AutoShardPolicy | str | None = None,
    ) -> DistributedDataset:
        """A dataset that divides each global batch of `dataset` among the replicas.

        Args:
            dataset: A pipeline of global batches: a Grain dataset or loader, a
                ``data.Dataset``, a TensorFlow, PyTorch, Hugging Face or Keras dataset,
                an iterable of batches, a generator function, or arrays.
            options: How batches are handed to the replicas.
            batch_size: The global batch size, for arrays.
            auto_shard_policy: How the data is divided among workers; what `dataset`
                itself asks for if None.

        Returns:
            The distributed dataset. Iterate over it for a value for each step.

        Raises:
            ReplicationModeError: If `options` ask for one pipeline per replica.
            ShardingError: If files were to be divided and there is not one for each worker.

        Example:
            >>> import numpy as np
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
            >>> dataset = strategy.distribute_dataset(np.arange(5), batch_size=4)
            >>> for batch in dataset:
            ...     print(strategy.experimental_local_results(batch))
            (Array([0, 1], dtype=int32), Array([2, 3], dtype=int32))
            (Array([4], dtype=int32), Array([], shape=(0,), dtype=int32))
        """
        stack.require_outside_run(self, "Strategy.distribute_dataset")
        return self.extended._distribute_dataset(
            dataset,
            _checked(options),
            batch_size=batch_size,
            auto_shard_policy=parse_policy(auto_shard_policy),
        )

    def experimental_distribute_dataset(
        self,
        dataset: Any,
        options: InputOptions | None = None,
        *,
        batch_size: int | None = None,
        auto_shard_policy: AutoShardPolicy | str | None = None,
    ) -> DistributedDataset:
        """`distribute_dataset` by the name that the documents use.

        Args:
            dataset: As for `distribute_dataset`.
            options: As for `distribute_dataset`.
            batch_size: As for `distribute_dataset`.
            auto_shard_policy: As for `distribute_dataset`.

        Returns:
            The distributed dataset.
        """
        return self.distribute_dataset(
            dataset, options, batch_size=batch_size, auto_shard_policy=auto_shard_policy
        )

    def distribute_datasets_from_function(
        self, dataset_fn: DatasetFn, options: InputOptions | None = None
    ) -> DistributedDataset:
        """A dataset of which each replica takes one batch of the pipeline of its worker.

        Args:
            dataset_fn: Makes the pipeline of one worker (or of one replica, if `options`
                say so) from an `InputContext`; its batches are those of one replica.
            options: How batches are handed to the replicas.

        Returns:
            The distributed dataset. Iterate over it for a value for each step.

        Example:
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
            >>> dataset = strategy.distribute_datasets_from_function(
            ...     lambda context: [[1, 2], [3, 4], [5, 6]])
            >>> for batch in dataset:
            ...     print(strategy.experimental_local_results(batch))
            (Array([1, 2], dtype=int32), Array([3, 4], dtype=int32))
            (Array([5, 6], dtype=int32), Array([], shape=(0,), dtype=int32))
        """
        stack.require_outside_run(self, "Strategy.distribute_datasets_from_function")
        return self.extended._distribute_datasets_from_function(dataset_fn, _checked(options))

    def experimental_distribute_datasets_from_function(
        self, dataset_fn: DatasetFn, options: InputOptions | None = None
    ) -> DistributedDataset:
        """`distribute_datasets_from_function` by the name that the documents use.

        Args:
            dataset_fn: As for `distribute_datasets_from_function`.
            options: As for `distribute_datasets_from_function`.

        Returns:
            The distributed dataset.
        """
        return self.distribute_datasets_from_function(dataset_fn, options)

    def experimental_make_numpy_dataset(self, numpy_input: Any, session: Any = None) -> Any:
        """Deprecated: ``data.Dataset.from_tensor_slices``.

        A list of arrays is stacked into one; tuples and dicts are structure.

        Args:
            numpy_input: An array, or a tuple, dict or list of arrays.
            session: Ignored: there are no sessions.

        Returns:
            A dataset with one element for each row.
        """
        return self.extended.experimental_make_numpy_dataset(numpy_input, session)

    def predict(self: Any, fn: Callable[[Any], Any], dataset: Any) -> Any:
        """What `fn` returns for every example of one pass, in the order of the input.

        Args:
            fn: Called by ``run`` with each batch; returns a nest of arrays with one row
                for every example. A plain function, or a ``function``.
            dataset: A `DistributedDataset`, or anything that `distribute_dataset` takes.

        Returns:
            A nest of host arrays.

        Example:
            >>> import numpy as np
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
            >>> dataset = strategy.distribute_dataset(np.arange(5), batch_size=4)
            >>> strategy.predict(lambda x: x * 10, dataset)
            array([ 0, 10, 20, 30, 40], dtype=int32)
        """
        if not isinstance(dataset, DistributedDataset):
            dataset = self.distribute_dataset(dataset)
        prediction = Prediction(self)
        for batch in dataset:
            prediction.add(batch, self.run(fn, args=(batch,)))
        return prediction.result()


def _checked(options: Any) -> InputOptions:
    if options is None:
        return InputOptions()
    if not isinstance(options, InputOptions):
        raise TypeError(f"options is {options!r}; expected an InputOptions, or None.")
    return options


def experimental_make_numpy_dataset(numpy_input: Any) -> Any:
    """Deprecated: ``data.Dataset.from_tensor_slices``; asks the current strategy.

    Args:
        numpy_input: An array, or a tuple or dict of arrays; a list of arrays is
            stacked into one.

    Returns:
        A dataset with one element for each row.
    """
    return stack.get_strategy().experimental_make_numpy_dataset(numpy_input)
