"""Replicax: one training program, on one device or many, on JAX.

Write the step once; choose where it runs by choosing a strategy.

>>> import replicax as rx
>>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
>>> with strategy.scope():
...     total = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM)
>>> @rx.function
... def step(x):
...     total.assign_add(x.sum())
>>> strategy.run(step, args=(strategy.distribute_batch([1.0, 2.0, 3.0, 4.0]),))
>>> total.numpy()
array(10., dtype=float32)
"""

import importlib
import typing

import replicax.core.jax_version  # noqa: F401 - first, because the others need that version
from replicax.backend.compilation_cache import set_compilation_cache
from replicax.backend.devices import set_virtual_devices
from replicax.core.enums import (
    InputReplicationMode,
    ReduceOp,
    VariableAggregation,
    VariableSynchronization,
)
from replicax.core.errors import ReplicaxError
from replicax.core.names import REPLICA_AXIS
from replicax.core.notices import ReplicaxWarning
from replicax.core.options import InputOptions, RunOptions
from replicax.core.spec import PerReplicaSpec, TensorSpec, TypeSpec
from replicax.engine.contexts.replica import ReplicaContext
from replicax.engine.contexts.stack import has_strategy, in_cross_replica_context
from replicax.engine.functions.function import (
    Function,
    function,
    functions_run_eagerly,
    run_functions_eagerly,
)
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
from replicax.strategies.current import experimental_set_strategy, get_replica_context, get_strategy
from replicax.strategies.default import DefaultStrategy
from replicax.strategies.extended import StrategyExtended
from replicax.strategies.mirrored import MirroredStrategy
from replicax.strategies.one_device import OneDeviceStrategy
from replicax.values.distributed import DistributedValues, Mirrored, PerReplica
from replicax.variables.creators import variable_creator_scope
from replicax.variables.gradients import grad, value_and_grad
from replicax.variables.variable import Variable

if typing.TYPE_CHECKING:
    from replicax import (
        cluster_resolver,
        coordinator,
        costs,
        data,
        experimental,
        integrations,
        metrics,
        optimizers,
        random,
        saved_model,
        summary,
        testing,
    )
    from replicax.checkpoint.backup import BackupAndRestore
    from replicax.checkpoint.checkpoint import Checkpoint
    from replicax.checkpoint.following import checkpoints_iterator
    from replicax.checkpoint.latest import latest_checkpoint
    from replicax.checkpoint.manager import CheckpointManager
    from replicax.checkpoint.options import CheckpointOptions
    from replicax.costs.calibrate import calibrate
    from replicax.costs.explain import Explanation, explain
    from replicax.costs.search_layout import search_layout
    from replicax.costs.simulate import simulate
    from replicax.drawing import visualize_value
    from replicax.losses import compute_average_loss, scale_regularization_loss
    from replicax.optimizers.carry import carry
    from replicax.optimizers.optimizer import Optimizer
    from replicax.optimizers.trees import assign, values_of, variables_from
    from replicax.parameter_server.strategy import ParameterServerStrategy
    from replicax.strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy
    from replicax.strategies.tpu import TPUStrategy
    from replicax.watching.report import WatchReport
    from replicax.watching.watch import watch

__version__ = "0.1.0"

__all__ = [
    "BackupAndRestore",
    "Checkpoint",
    "CheckpointManager",
    "CheckpointOptions",
    "CrossDeviceOps",
    "DefaultStrategy",
    "DistributedDataset",
    "DistributedIterator",
    "DistributedValues",
    "Explanation",
    "Function",
    "HierarchicalCopyAllReduce",
    "InputContext",
    "InputOptions",
    "InputReplicationMode",
    "Mirrored",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "Optimizer",
    "ParameterServerStrategy",
    "PerReplica",
    "PerReplicaSpec",
    "REPLICA_AXIS",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "ReplicaxError",
    "ReplicaxWarning",
    "RunOptions",
    "Strategy",
    "StrategyExtended",
    "TPUStrategy",
    "TensorSpec",
    "TypeSpec",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "WatchReport",
    "assign",
    "calibrate",
    "carry",
    "checkpoints_iterator",
    "cluster_resolver",
    "compute_average_loss",
    "coordinator",
    "costs",
    "data",
    "experimental",
    "experimental_set_strategy",
    "explain",
    "function",
    "functions_run_eagerly",
    "get_replica_context",
    "get_strategy",
    "grad",
    "has_strategy",
    "in_cross_replica_context",
    "integrations",
    "latest_checkpoint",
    "metrics",
    "optimizers",
    "random",
    "run_functions_eagerly",
    "saved_model",
    "scale_regularization_loss",
    "search_layout",
    "set_compilation_cache",
    "set_virtual_devices",
    "simulate",
    "summary",
    "testing",
    "value_and_grad",
    "values_of",
    "variable_creator_scope",
    "variables_from",
    "visualize_value",
    "watch",
]

# A program may do without any of these.
_IMPORTED_WHEN_USED = {
    "BackupAndRestore": "replicax.checkpoint.backup",
    "Checkpoint": "replicax.checkpoint.checkpoint",
    "CheckpointManager": "replicax.checkpoint.manager",
    "CheckpointOptions": "replicax.checkpoint.options",
    "Explanation": "replicax.costs.explain",
    "MultiWorkerMirroredStrategy": "replicax.strategies.multi_worker_mirrored",
    "Optimizer": "replicax.optimizers.optimizer",
    "ParameterServerStrategy": "replicax.parameter_server.strategy",
    "TPUStrategy": "replicax.strategies.tpu",
    "WatchReport": "replicax.watching.report",
    "assign": "replicax.optimizers.trees",
    "calibrate": "replicax.costs.calibrate",
    "carry": "replicax.optimizers.carry",
    "checkpoints_iterator": "replicax.checkpoint.following",
    "cluster_resolver": None,
    "compute_average_loss": "replicax.losses",
    "coordinator": None,
    "costs": None,
    "data": None,
    "experimental": None,
    "explain": "replicax.costs.explain",
    "integrations": None,
    "latest_checkpoint": "replicax.checkpoint.latest",
    "metrics": None,
    "optimizers": None,
    "random": None,
    "saved_model": None,
    "scale_regularization_loss": "replicax.losses",
    "search_layout": "replicax.costs.search_layout",
    "simulate": "replicax.costs.simulate",
    "summary": None,
    "testing": None,
    "values_of": "replicax.optimizers.trees",
    "variables_from": "replicax.optimizers.trees",
    "visualize_value": "replicax.drawing",
    "watch": "replicax.watching.watch",
}


def __getattr__(name: str) -> typing.Any:
    try:
        source = _IMPORTED_WHEN_USED[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    if source is None:
        return importlib.import_module(f"{__name__}.{name}")
    value = globals()[name] = getattr(importlib.import_module(source), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
