"""Names that the documents place under ``tf.config.experimental``: older ones of `tf.config`."""

import typing

from replicax.backend.devices import LogicalDeviceConfiguration as VirtualDeviceConfiguration
from replicax.backend.devices import (
    set_logical_device_configuration as set_virtual_device_configuration,
)
from replicax.tf.config.listing import list_logical_devices, list_physical_devices
from replicax.tf.equivalents import missing as _missing

__all__ = [
    "VirtualDeviceConfiguration",
    "list_logical_devices",
    "list_physical_devices",
    "set_virtual_device_configuration",
]


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.config.experimental", name)
