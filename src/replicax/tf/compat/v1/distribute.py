"""Names that the documents place under ``tf.compat.v1.distribute``: the same objects.

A strategy has the methods of both spellings; the older ones say once what to
write instead.
"""

import typing

from replicax import cluster_resolver
from replicax.core.enums import InputReplicationMode, ReduceOp
from replicax.core.options import RunOptions
from replicax.engine.contexts.replica import ReplicaContext
from replicax.engine.contexts.stack import has_strategy, in_cross_replica_context
from replicax.input.context import InputContext
from replicax.strategies.base import Strategy
from replicax.strategies.cross_device_ops import (
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
)
from replicax.strategies.current import experimental_set_strategy, get_replica_context, get_strategy
from replicax.strategies.extended import StrategyExtended
from replicax.strategies.mirrored import MirroredStrategy
from replicax.strategies.one_device import OneDeviceStrategy
from replicax.tf.compat.v1.loss_reduction import get_loss_reduction
from replicax.tf.distribute import experimental
from replicax.tf.equivalents import missing as _missing

__all__ = [
    "CrossDeviceOps",
    "HierarchicalCopyAllReduce",
    "InputContext",
    "InputReplicationMode",
    "MirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "RunOptions",
    "Strategy",
    "StrategyExtended",
    "cluster_resolver",
    "experimental",
    "experimental_set_strategy",
    "get_loss_reduction",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.compat.v1.distribute", name)
