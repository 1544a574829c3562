"""Names that the documents place under ``tf.distribute``."""

from replicax import cluster_resolver, experimental
from replicax.context.replica import ReplicaContext
from replicax.context.stack import (
    experimental_set_strategy,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from replicax.core.enums import InputReplicationMode, ReduceOp
from replicax.core.options import InputOptions, RunOptions
from replicax.core.value_context import ValueContext
from replicax.input.context import InputContext
from replicax.input.dataset import DistributedDataset
from replicax.input.iterator import DistributedIterator
from replicax.strategies.base import Strategy
from replicax.strategies.cross_device_ops import (
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
)
from replicax.strategies.extended import StrategyExtended
from replicax.strategies.input_verbs import experimental_make_numpy_dataset
from replicax.strategies.mirrored import MirroredStrategy
from replicax.strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy
from replicax.strategies.one_device import OneDeviceStrategy
from replicax.strategies.tpu import TPUStrategy
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
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "RunOptions",
    "Strategy",
    "StrategyExtended",
    "TPUStrategy",
    "ValueContext",
    "cluster_resolver",
    "experimental",
    "experimental_make_numpy_dataset",
    "experimental_set_strategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]
