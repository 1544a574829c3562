"""Schedules closures on workers: names that the documents place under ``coordinator``."""

from replicax.parameter_server.coordinator import ClusterCoordinator
from replicax.parameter_server.per_worker import (
    PerWorkerDataset,
    PerWorkerIterator,
    PerWorkerValues,
    experimental_get_current_worker_index,
)
from replicax.parameter_server.per_worker import PerWorkerValues as PerWorkerValue
from replicax.parameter_server.remote_value import ClosureCancelledError, RemoteValue
from replicax.parameter_server.statistics import CoordinatorStats
from replicax.parameter_server.transport import ServerGoneError, WorkerGoneError

__all__ = [
    "ClosureCancelledError",
    "ClusterCoordinator",
    "CoordinatorStats",
    "PerWorkerDataset",
    "PerWorkerIterator",
    "PerWorkerValue",
    "PerWorkerValues",
    "RemoteValue",
    "ServerGoneError",
    "WorkerGoneError",
    "experimental_get_current_worker_index",
]
