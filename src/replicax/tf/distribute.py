"""Names that the documents place under ``tf.distribute``."""

from replicax import experimental
from replicax.context.replica import ReplicaContext
from replicax.context.stack import (
    experimental_set_strategy,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from replicax.core.enums import ReduceOp
from replicax.core.options import RunOptions
from replicax.core.value_context import ValueContext
from replicax.strategies.base import Strategy
from replicax.strategies.cross_device_ops import (
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
)
from replicax.strategies.extended import StrategyExtended
from replicax.strategies.mirrored import MirroredStrategy
from replicax.strategies.one_device import OneDeviceStrategy
from replicax.values.distributed import DistributedValues

__all__ = [
    "CrossDeviceOps",
    "DistributedValues",
    "HierarchicalCopyAllReduce",
    "MirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "RunOptions",
    "Strategy",
    "StrategyExtended",
    "ValueContext",
    "experimental",
    "experimental_set_strategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]
