"""Names that the documents place under ``experimental``."""

from replicax import coordinator
from replicax.checkpoint.preemption import PreemptionCheckpointHandler
from replicax.checkpoint.preemption_watcher import PreemptionWatcher
from replicax.checkpoint.termination import TerminationConfig
from replicax.core import partitioners
from replicax.core.options import (
    CollectiveHints,
    CommunicationImplementation,
    CommunicationOptions,
)
from replicax.core.options import CommunicationImplementation as CollectiveCommunication
from replicax.core.sharding import Sharding
from replicax.core.value_context import ValueContext
from replicax.parameter_server.strategy import ParameterServerStrategy
from replicax.strategies.central_storage import CentralStorageStrategy
from replicax.strategies.multi_step import MultiStepContext
from replicax.strategies.multi_worker_mirrored import (
    ExperimentalMultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy,
)
from replicax.strategies.parts import elementwise
from replicax.strategies.tpu import ExperimentalTPUStrategy as TPUStrategy

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiStepContext",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "PreemptionCheckpointHandler",
    "PreemptionWatcher",
    "Sharding",
    "TPUStrategy",
    "TerminationConfig",
    "ValueContext",
    "coordinator",
    "elementwise",
    "partitioners",
]
