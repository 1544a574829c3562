"""Names that the documents place under ``tf.config``."""

import typing

from replicax.backend.devices import (
    LogicalDevice,
    LogicalDeviceConfiguration,
    PhysicalDevice,
    set_logical_device_configuration,
)
from replicax.backend.topology import experimental_connect_to_cluster
from replicax.engine.functions.function import functions_run_eagerly, run_functions_eagerly
from replicax.tf.config import experimental
from replicax.tf.config.listing import list_logical_devices, list_physical_devices
from replicax.tf.equivalents import missing as _missing

__all__ = [
    "LogicalDevice",
    "LogicalDeviceConfiguration",
    "PhysicalDevice",
    "experimental",
    "experimental_connect_to_cluster",
    "functions_run_eagerly",
    "list_logical_devices",
    "list_physical_devices",
    "run_functions_eagerly",
    "set_logical_device_configuration",
]


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.config", name)
