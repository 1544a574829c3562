"""How the devices of all processes are arranged: a grid in which each device has coordinates.

On TPUs the coordinates are those of the chips. Other devices have no place of their own, so they
get one in a grid of four dims, which is what programs for TPUs expect.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from replicax.backend import devices
from replicax.core.typing import Device

GRID_RANK = 4


class Topology:
    """The grid of the devices of all tasks.

    Args:
        serialized: What `serialized` returned; instead of the other two.
        mesh_shape: The sizes of the four dims of the grid.
        device_coordinates: The coordinates of each device, by task and number in the task:
            an array of shape (tasks, devices of a task, 4).

    Raises:
        ValueError: If shape and coordinates do not fit each other.

    Example:
        >>> topology = Topology(mesh_shape=[1, 1, 1, 2], device_coordinates=[
        ...     [[0, 0, 0, 0], [0, 0, 0, 1]]])
        >>> topology.num_tasks, topology.num_tpus_per_task
        (1, 2)
        >>> topology.tpu_device_name_at_coordinates([0, 0, 0, 1])
        '/task:0/device:TPU:1'
    """

    def __init__(
        self,
        serialized: bytes | str | None = None,
        mesh_shape: Sequence[int] | None = None,
        device_coordinates: Any = None,
    ) -> None:
        """A grid with devices in it."""
        self._kind = "TPU"
        if serialized is not None:
            found = json.loads(serialized)
            mesh_shape, device_coordinates = found["mesh_shape"], found["device_coordinates"]
            self._kind = found["kind"]
        self._mesh_shape = np.asarray(mesh_shape, np.int32)
        self._coordinates = np.asarray(device_coordinates, np.int32)
        if self._mesh_shape.shape != (GRID_RANK,) or (self._mesh_shape < 1).any():
            raise ValueError(
                f"mesh_shape is {mesh_shape!r}; expected {GRID_RANK} sizes of at least 1."
            )
        if self._coordinates.ndim != 3 or self._coordinates.shape[2] != GRID_RANK:
            raise ValueError(
                f"device_coordinates has shape {self._coordinates.shape}; expected (tasks, devices "
                f"of a task, {GRID_RANK})."
            )
        inside = (self._coordinates >= 0) & (self._coordinates < self._mesh_shape)
        if not inside.all():
            outside = self._coordinates[~inside.all(axis=2)][0].tolist()
            raise ValueError(
                f"a device has the coordinates {outside}, outside of a grid of shape "
                f"{self._mesh_shape.tolist()}."
            )
        self._places: dict[tuple[int, ...], tuple[int, int]] = {}
        for task, own in enumerate(self._coordinates.tolist()):
            for number, place in enumerate(own):
                if tuple(place) in self._places:
                    raise ValueError(f"two devices have the coordinates {place}.")
                self._places[tuple(place)] = (task, number)

    def __repr__(self) -> str:
        shape = self._mesh_shape.tolist()
        return f"<Topology: {len(self._places)} {self._kind} devices in a grid of shape {shape}>"

    @property
    def mesh_shape(self) -> np.ndarray:
        """The sizes of the dims of the grid."""
        return self._mesh_shape

    @property
    def mesh_rank(self) -> int:
        """The number of dims of the grid."""
        return len(self._mesh_shape)

    @property
    def device_coordinates(self) -> np.ndarray:
        """The coordinates of each device, by task and number in the task."""
        return self._coordinates

    @property
    def missing_devices(self) -> np.ndarray:
        """For each place of the grid whether there is no device."""
        missing = np.ones(self._mesh_shape, bool)
        for place in self._places:
            missing[place] = False
        return missing

    @property
    def num_tasks(self) -> int:
        """How many processes have devices."""
        return self._coordinates.shape[0]

    @property
    def num_tpus_per_task(self) -> int:
        """How many devices each of them has."""
        return self._coordinates.shape[1]

    def task_ordinal_at_coordinates(self, device_coordinates: Sequence[int]) -> int:
        """The task of the device at these coordinates.

        Args:
            device_coordinates: One coordinate for each dim of the grid.

        Returns:
            The number of the task.

        Raises:
            ValueError: If there is no device.
        """
        return self._place(device_coordinates)[0]

    def tpu_device_ordinal_at_coordinates(self, device_coordinates: Sequence[int]) -> int:
        """The number of the device at these coordinates, in its task.

        Args:
            device_coordinates: One coordinate for each dim of the grid.

        Returns:
            The number of the device.

        Raises:
            ValueError: If there is no device.
        """
        return self._place(device_coordinates)[1]

    def _place(self, coordinates: Sequence[int]) -> tuple[int, int]:
        place = tuple(int(number) for number in coordinates)
        if place not in self._places:
            raise ValueError(
                f"there is no device at {list(place)} in a grid of shape "
                f"{self._mesh_shape.tolist()}."
            )
        return self._places[place]

    def tpu_device_name_at_coordinates(
        self, device_coordinates: Sequence[int], job: str | None = None
    ) -> str:
        """The name of the device at these coordinates.

        Args:
            device_coordinates: One coordinate for each dim of the grid.
            job: The job that the name begins with; none if None.

        Returns:
            A name such as ``/task:0/device:TPU:1``.

        Raises:
            ValueError: If there is no device.
        """
        task, number = self._place(device_coordinates)
        return f"{_job(job)}/task:{task}/device:{self._kind}:{number}"

    def cpu_device_name_at_coordinates(
        self, device_coordinates: Sequence[int], job: str | None = None
    ) -> str:
        """The name of the CPU of the task that has the device at these coordinates.

        Args:
            device_coordinates: One coordinate for each dim of the grid.
            job: The job that the name begins with; none if None.

        Returns:
            A name such as ``/task:0/device:CPU:0``.

        Raises:
            ValueError: If there is no device.
        """
        return f"{_job(job)}/task:{self._place(device_coordinates)[0]}/device:CPU:0"

    def serialized(self) -> bytes:
        """The topology as bytes, for ``Topology(serialized)`` in another process."""
        found = {
            "kind": self._kind,
            "mesh_shape": self._mesh_shape.tolist(),
            "device_coordinates": self._coordinates.tolist(),
        }
        return json.dumps(found).encode()

    @classmethod
    def _of_devices(cls, everywhere: Sequence[Device]) -> Topology:
        """The grid of these devices, of all processes.

        Raises:
            ValueError: If processes have different numbers of devices.
        """
        tasks: dict[int, list[Device]] = {}
        for device in sorted(everywhere, key=lambda d: (d.process_index, d.id)):
            tasks.setdefault(device.process_index, []).append(device)
        sizes = {len(own) for own in tasks.values()}
        if len(sizes) != 1:
            counts = [len(own) for own in tasks.values()]
            raise ValueError(f"the tasks have {counts} devices; expected as many on each.")
        places = [_real_place(device) for own in tasks.values() for device in own]
        if all(place is not None for place in places):
            grid = np.asarray(places, np.int32)
            shape = (grid.max(axis=0) + 1).tolist()
        else:
            shape = grid_shape(len(places))
            grid = np.stack(np.unravel_index(np.arange(len(places)), shape), axis=1)
        topology = cls(mesh_shape=shape, device_coordinates=grid.reshape(len(tasks), -1, GRID_RANK))
        topology._kind = devices.device_kind(everywhere[0])
        return topology


def grid_shape(num_devices: int) -> list[int]:
    """The four sizes of a grid for devices without places: powers of two, from the last dim on.

    Example:
        >>> grid_shape(8), grid_shape(2), grid_shape(32), grid_shape(6)
        ([1, 2, 2, 2], [1, 1, 1, 2], [2, 2, 2, 4], [3, 1, 1, 2])
    """
    shape = [1] * GRID_RANK
    twos = (num_devices & -num_devices).bit_length() - 1
    for turn in range(twos):
        shape[-1 - turn % GRID_RANK] *= 2
    shape[0] *= num_devices >> twos
    assert math.prod(shape) == num_devices
    return shape


def _real_place(device: Device) -> tuple[int, ...] | None:
    coordinates = getattr(device, "coords", None)
    if device.platform != "tpu" or coordinates is None:
        return None
    return (*coordinates, getattr(device, "core_on_chip", 0))


def _job(job: str | None) -> str:
    return "" if job is None else f"/job:{job}"


def initialize_tpu_system(cluster_resolver: Any = None) -> Topology:
    """The topology of the devices of all processes; starts JAX.

    There is nothing to initialize: JAX does it when it starts.

    Args:
        cluster_resolver: Ignored: the devices are those that JAX has.

    Returns:
        The grid of all devices.

    Example:
        >>> initialize_tpu_system()
        <Topology: 8 CPU devices in a grid of shape [1, 2, 2, 2]>
    """
    del cluster_resolver
    local = devices.local_devices()
    return Topology._of_devices(jax.devices(local[0].platform))


def shutdown_tpu_system(cluster_resolver: Any = None) -> None:
    """Does nothing: the devices belong to the process as long as it runs.

    Args:
        cluster_resolver: Ignored.

    Example:
        >>> import replicax.tf as tf
        >>> tf.tpu.experimental.shutdown_tpu_system()
    """
    del cluster_resolver


def experimental_connect_to_cluster(
    cluster_spec_or_resolver: Any,
    job_name: str = "localhost",
    task_index: int = 0,
    protocol: str | None = None,
    make_master_device_default: bool = True,
    cluster_device_filters: Any = None,
) -> None:
    """Does nothing: every process has its own devices, and strategies join the others.

    Args:
        cluster_spec_or_resolver: Ignored.
        job_name: Ignored.
        task_index: Ignored.
        protocol: Ignored.
        make_master_device_default: Ignored.
        cluster_device_filters: Ignored.

    Example:
        >>> import replicax.tf as tf
        >>> tf.config.experimental_connect_to_cluster(None)
    """
