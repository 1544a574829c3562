"""Names that the documents place under ``tf.tpu.experimental``."""

from replicax.backend.device_assignment import DeviceAssignment, DeviceOrderMode
from replicax.backend.topology import Topology, initialize_tpu_system, shutdown_tpu_system
from replicax.cluster.tpu import TPUSystemMetadata

__all__ = [
    "DeviceAssignment",
    "DeviceOrderMode",
    "TPUSystemMetadata",
    "Topology",
    "initialize_tpu_system",
    "shutdown_tpu_system",
]
