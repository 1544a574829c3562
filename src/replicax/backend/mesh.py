"""The devices of the replicas as a mesh, with the two layouts values can have.

The first axis counts the replicas. A replica that spans several *logical devices* has them along
the other axes, one axis for each prime factor of their number, so that every way to split an array
among them is a choice of axes.
"""

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
    """Where the replicas live, in replica order.

    Attributes:
        devices: The device of each replica; the first of its logical devices.
        mesh: All devices as a JAX mesh with ``REPLICA_AXIS`` as its first axis.
        replicated: Layout of a value with a whole copy on every device.
        per_replica: Layout of an array whose dim 0 is divided among the replicas.
        logical_devices: The logical devices of each replica.
    """

    devices: tuple[Device, ...]
    mesh: Mesh
    replicated: NamedSharding
    per_replica: NamedSharding
    logical_devices: tuple[tuple[Device, ...], ...]

    def described(self) -> str:
        """The devices of the replicas, for errors."""
        rows = [[f"{d.platform.upper()}:{d.id}" for d in row] for row in self.logical_devices]
        return ", ".join(row[0] if len(row) == 1 else f"({' '.join(row)})" for row in rows)

    @property
    def num_logical_devices(self) -> int:
        """How many logical devices a replica spans."""
        return len(self.logical_devices[0])

    @property
    def logical_axes(self) -> tuple[str, ...]:
        """The axes of the mesh along which a replica has its logical devices."""
        return self.mesh.axis_names[1:]

    @functools.cached_property
    def local_logical_devices(self) -> tuple[tuple[Device, ...], ...]:
        """The logical devices of `local_replicas`."""
        return self.logical_devices[self.local_replicas.start : self.local_replicas.stop]

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
        """Which of the local replicas a replica is.

        Args:
            replica_id: The number of the replica among all.

        Returns:
            Its number among the replicas of this process.
        """
        return replica_id - self.local_replicas.start

    @property
    def is_default(self) -> bool:
        """Whether it is just the one device that JAX uses for everything anyway.

        Programs on it need not name it, and then what they return is uncommitted.
        """
        if len(self.devices) != 1 or self.num_logical_devices > 1:
            return False
        default = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
        return self.devices[0] == (jax.local_devices()[0] if default is None else default)


def _is_local(device: Device) -> bool:
    return device.process_index == device.client.process_index()


@functools.cache
def replica_mesh(devices: tuple[Device, ...]) -> ReplicaMesh:
    """The mesh over `devices`; equal device tuples share one mesh and its compiled programs."""
    return logical_mesh(tuple((device,) for device in devices))


@functools.cache
def logical_mesh(rows: tuple[tuple[Device, ...], ...]) -> ReplicaMesh:
    """The mesh of replicas that span the devices of one row each."""
    factors = prime_factors(len(rows[0]))
    axes = (REPLICA_AXIS, *(f"logical_{i}" for i in range(len(factors))))
    grid = np.asarray(rows).reshape(len(rows), *factors)
    mesh = Mesh(grid, axes, axis_types=(AxisType.Auto,) * len(axes))
    return ReplicaMesh(
        tuple(row[0] for row in rows),
        mesh,
        NamedSharding(mesh, REPLICATED),
        NamedSharding(mesh, PER_REPLICA),
        rows,
    )


def prime_factors(number: int) -> list[int]:
    """The prime factors of `number`, the smallest first.

    Example:
        >>> prime_factors(12), prime_factors(1)
        ([2, 2, 3], [])
    """
    factors = []
    divisor = 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors
