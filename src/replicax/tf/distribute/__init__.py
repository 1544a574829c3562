"""Names that the documents place under ``tf.distribute``."""

import typing

from replicax import cluster_resolver, coordinator
from replicax.core.enums import InputReplicationMode, ReduceOp
from replicax.core.options import InputOptions, RunOptions
from replicax.core.value_context import ValueContext
from replicax.engine.contexts.replica import ReplicaContext
from replicax.engine.contexts.stack import has_strategy, in_cross_replica_context
from replicax.input.context import InputContext
from replicax.input.dataset import DistributedDataset
from replicax.input.iterator import DistributedIterator
from replicax.parameter_server.strategy import ParameterServerStrategy
from replicax.strategies.base import Strategy
from replicax.strategies.cross_device_ops import (
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
)
from replicax.strategies.current import (
    experimental_make_numpy_dataset,
    experimental_set_strategy,
    get_replica_context,
    get_strategy,
)
from replicax.strategies.extended import StrategyExtended
from replicax.strategies.mirrored import MirroredStrategy
from replicax.strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy
from replicax.strategies.one_device import OneDeviceStrategy
from replicax.strategies.tpu import TPUStrategy
from replicax.tf.distribute import experimental
from replicax.tf.equivalents import missing as _missing
from replicax.values.distributed import DistributedValues

__all__ = [
    "CrossDeviceOps",
    "DistributedDataset",
    "DistributedIterator",
    "DistributedValues",
    "HierarchicalCopyAllReduce",
    "InputContext",
    "InputOptions",
    "InputReplicationMode",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "RunOptions",
    "Strategy",
    "StrategyExtended",
    "TPUStrategy",
    "ValueContext",
    "cluster_resolver",
    "coordinator",
    "experimental",
    "experimental_make_numpy_dataset",
    "experimental_set_strategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.distribute", name)
