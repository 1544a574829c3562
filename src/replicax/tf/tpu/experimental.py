"""Names that the documents place under ``tf.tpu.experimental``."""

import typing

from replicax.backend.device_assignment import DeviceAssignment, DeviceOrderMode
from replicax.backend.topology import Topology, initialize_tpu_system, shutdown_tpu_system
from replicax.cluster.tpu import HardwareFeature, TPUSystemMetadata
from replicax.tf.equivalents import missing as _missing

__all__ = [
    "DeviceAssignment",
    "DeviceOrderMode",
    "HardwareFeature",
    "TPUSystemMetadata",
    "Topology",
    "initialize_tpu_system",
    "shutdown_tpu_system",
]


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.tpu.experimental", name)
