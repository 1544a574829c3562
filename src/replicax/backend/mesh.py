"""The devices of the replicas as a one-axis mesh, with the two layouts values can have."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from replicax.core.names import REPLICA_AXIS
from replicax.core.typing import Device

REPLICATED = PartitionSpec()
PER_REPLICA = PartitionSpec(REPLICA_AXIS)


@dataclasses.dataclass(frozen=True)
class ReplicaMesh:
    """Where the replicas live, one device each, in replica order.

    Attributes:
        devices: The device of each replica.
        mesh: The same as a JAX mesh with the single axis ``REPLICA_AXIS``.
        replicated: Layout of a value with a whole copy on every device.
        per_replica: Layout of an array whose dim 0 is divided among the devices.
    """

    devices: tuple[Device, ...]
    mesh: Mesh
    replicated: NamedSharding
    per_replica: NamedSharding

    @property
    def num_replicas(self) -> int:
        """How many replicas there are."""
        return len(self.devices)

    @functools.cached_property
    def local_replicas(self) -> range:
        """The replicas whose devices this process has; they follow one another."""
        ids = [i for i, device in enumerate(self.devices) if _is_local(device)]
        return range(ids[0], ids[-1] + 1) if ids else range(0)

    @functools.cached_property
    def local_devices(self) -> tuple[Device, ...]:
        """The devices of `local_replicas`."""
        return self.devices[self.local_replicas.start : self.local_replicas.stop]

    @functools.cached_property
    def spans_workers(self) -> bool:
        """Whether other processes have some of the devices."""
        return len(self.local_replicas) < len(self.devices)

    def local_index(self, replica_id: int) -> int:
        """Which of the local replicas a replica is."""
        return replica_id - self.local_replicas.start

    @property
    def is_default(self) -> bool:
        """Whether it is just the one device that JAX uses for everything anyway.

        Programs on it need not name it, and then what they return is uncommitted.
        """
        if len(self.devices) != 1:
            return False
        default = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
        return self.devices[0] == (jax.local_devices()[0] if default is None else default)


def _is_local(device: Device) -> bool:
    return device.process_index == device.client.process_index()


@functools.cache
def replica_mesh(devices: tuple[Device, ...]) -> ReplicaMesh:
    """The mesh over `devices`; equal device tuples share one mesh and its compiled programs."""
    mesh = Mesh(np.asarray(devices), (REPLICA_AXIS,), axis_types=(AxisType.Auto,))
    return ReplicaMesh(
        devices, mesh, NamedSharding(mesh, REPLICATED), NamedSharding(mesh, PER_REPLICA)
    )
