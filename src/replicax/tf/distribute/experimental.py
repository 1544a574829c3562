"""Names that the documents place under ``tf.distribute.experimental``: `replicax.experimental`."""

import typing

from replicax import coordinator
from replicax.experimental import (
    CentralStorageStrategy,
    CollectiveCommunication,
    CollectiveHints,
    CommunicationImplementation,
    CommunicationOptions,
    MultiStepContext,
    MultiWorkerMirroredStrategy,
    ParameterServerStrategy,
    PreemptionCheckpointHandler,
    PreemptionWatcher,
    Sharding,
    TerminationConfig,
    TPUStrategy,
    ValueContext,
    elementwise,
    partitioners,
)
from replicax.tf.equivalents import missing as _missing

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


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.distribute.experimental", name)
