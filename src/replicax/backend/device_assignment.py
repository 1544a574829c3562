"""Which devices a replica spans: the logical devices of each replica, as places of a topology."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from replicax.backend.topology import Topology


class DeviceOrderMode(enum.IntEnum):
    """In which order the devices of a replica are numbered.

    Example:
        >>> DeviceOrderMode.RING
        <DeviceOrderMode.RING: 1>
    """

    AUTO = 0
    RING = 1
    MESH = 2


class DeviceAssignment:
    """The logical devices of each replica.

    Args:
        topology: The grid of all devices.
        core_assignment: The coordinates of each logical device of each replica: an array of
            shape (replicas, logical devices, 4).

    Raises:
        ValueError: If the array has another shape, names a place without a device, or one twice.

    Example:
        >>> topology = Topology(mesh_shape=[1, 1, 1, 2], device_coordinates=[
        ...     [[0, 0, 0, 0], [0, 0, 0, 1]]])
        >>> assignment = DeviceAssignment.build(topology, [1, 1, 1, 2])
        >>> assignment.num_replicas, assignment.num_cores_per_replica
        (1, 2)
        >>> assignment.coordinates(0, 1)
        (0, 0, 0, 1)
    """

    def __init__(self, topology: Topology, core_assignment: Any) -> None:
        """An assignment that says it all."""
        if not isinstance(topology, Topology):
            raise ValueError(f"topology is {topology!r}; expected a Topology.")
        cores = np.asarray(core_assignment, np.int32)
        if cores.ndim != 3 or cores.shape[2] != topology.mesh_rank:
            raise ValueError(
                f"core_assignment has shape {cores.shape}; expected (replicas, logical devices, "
                f"{topology.mesh_rank})."
            )
        self._topology = topology
        self._cores = cores
        seen: dict[tuple[int, ...], tuple[int, int]] = {}
        for replica, own in enumerate(cores.tolist()):
            for core, place in enumerate(own):
                topology.tpu_device_ordinal_at_coordinates(place)  # raises if nothing is there
                other = seen.setdefault(tuple(place), (replica, core))
                if other != (replica, core):
                    raise ValueError(
                        f"the device at {place} is assigned twice: to logical device {other[1]} of "
                        f"replica {other[0]} and to logical device {core} of replica {replica}."
                    )

    def __repr__(self) -> str:
        return (
            f"<DeviceAssignment: {self.num_replicas} replicas of {self.num_cores_per_replica} "
            f"logical devices in {self._topology!r}>"
        )

    @property
    def topology(self) -> Topology:
        """The grid of all devices."""
        return self._topology

    @property
    def core_assignment(self) -> np.ndarray:
        """The coordinates of each logical device of each replica."""
        return self._cores

    @property
    def num_replicas(self) -> int:
        """How many replicas there are."""
        return self._cores.shape[0]

    @property
    def num_cores_per_replica(self) -> int:
        """How many logical devices each replica spans."""
        return self._cores.shape[1]

    def coordinates(self, replica: int, logical_core: int) -> tuple[int, ...]:
        """Where a logical device is.

        Args:
            replica: The number of the replica.
            logical_core: The number of the logical device in it.

        Returns:
            One coordinate for each dim of the grid.
        """
        return tuple(self._cores[replica, logical_core].tolist())

    def lookup_replicas(self, task_id: int, logical_core: int) -> list[int]:
        """The replicas whose logical device of this number is on a task.

        Args:
            task_id: The number of the task.
            logical_core: The number of the logical device in each replica.

        Returns:
            The numbers of the replicas.

        Raises:
            ValueError: If there is none.
        """
        found = [
            replica
            for replica in range(self.num_replicas)
            if 0 <= logical_core < self.num_cores_per_replica
            and self._task(replica, logical_core) == task_id
        ]
        if not found:
            raise ValueError(
                f"no replica has its logical device {logical_core} on task {task_id}. There are "
                f"{self._topology.num_tasks} tasks and {self.num_cores_per_replica} logical "
                "devices in each replica."
            )
        return found

    def _task(self, replica: int, logical_core: int) -> int:
        return self._topology.task_ordinal_at_coordinates(self.coordinates(replica, logical_core))

    def tpu_ordinal(self, replica: int = 0, logical_core: int = 0) -> int:
        """The number of a logical device in its task.

        Args:
            replica: The number of the replica.
            logical_core: The number of the logical device in it.

        Returns:
            The number of the device in its task.
        """
        place = self.coordinates(replica, logical_core)
        return self._topology.tpu_device_ordinal_at_coordinates(place)

    def tpu_device(self, replica: int = 0, logical_core: int = 0, job: str | None = None) -> str:
        """The name of a logical device.

        Args:
            replica: The number of the replica.
            logical_core: The number of the logical device in it.
            job: The job that the name begins with; none if None.

        Returns:
            A name such as ``/task:0/device:TPU:1``.
        """
        place = self.coordinates(replica, logical_core)
        return self._topology.tpu_device_name_at_coordinates(place, job)

    def host_device(self, replica: int = 0, logical_core: int = 0, job: str | None = None) -> str:
        """The name of the CPU of the task that has a logical device.

        Args:
            replica: The number of the replica.
            logical_core: The number of the logical device in it.
            job: The job that the name begins with; none if None.

        Returns:
            A name such as ``/task:0/device:CPU:0``.
        """
        place = self.coordinates(replica, logical_core)
        return self._topology.cpu_device_name_at_coordinates(place, job)

    @staticmethod
    def build(
        topology: Topology,
        computation_shape: Sequence[int] | None = None,
        computation_stride: Sequence[int] | None = None,
        num_replicas: int = 1,
        device_order_mode: DeviceOrderMode = DeviceOrderMode.AUTO,
    ) -> DeviceAssignment:
        """Cuts the grid into blocks, and gives each replica one.

        Args:
            topology: The grid of all devices.
            computation_shape: The sizes of a block, by dims of the grid; one device if None.
            computation_stride: How far apart the devices of a block are; next to each other
                if None.
            num_replicas: How many replicas to make.
            device_order_mode: ``RING`` numbers the devices of a block so that each is next to
                the one before it; otherwise row by row.

        Returns:
            The assignment.

        Raises:
            ValueError: If a block does not fit into the grid, or not that many do.

        Example:
            >>> topology = Topology(mesh_shape=[1, 1, 2, 2], device_coordinates=[
            ...     [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0], [0, 0, 1, 1]]])
            >>> assignment = DeviceAssignment.build(topology, [1, 1, 1, 2], num_replicas=2)
            >>> assignment.coordinates(1, 0)
            (0, 0, 1, 0)
        """
        rank = topology.mesh_rank
        shape = _sizes("computation_shape", computation_shape, rank)
        stride = _sizes("computation_stride", computation_stride, rank)
        grid = topology.mesh_shape.tolist()
        footprint = [size * step for size, step in zip(shape, stride, strict=True)]
        if any(size > whole for size, whole in zip(footprint, grid, strict=True)):
            raise ValueError(
                f"a replica of shape {shape} with stride {stride} takes {footprint} of the grid, "
                f"which has the shape {grid}. Choose a computation_shape that fits into it."
            )
        blocks = [whole // size for whole, size in zip(grid, footprint, strict=True)]
        most = math.prod(blocks) * math.prod(stride)
        if isinstance(num_replicas, bool) or not 0 < num_replicas <= most:
            raise ValueError(
                f"num_replicas is {num_replicas}; of replicas of shape {shape} with stride "
                f"{stride}, from 1 to {most} fit into a grid of shape {grid}."
            )
        corners = [
            tuple(b * f + s for b, f, s in zip(block, footprint, shift, strict=True))
            for block in itertools.product(*map(range, blocks))
            for shift in itertools.product(*map(range, stride))
        ]
        order = _ring(shape) if device_order_mode is DeviceOrderMode.RING else _rows(shape)
        cores = [
            [
                [c + o * s for c, o, s in zip(corner, offset, stride, strict=True)]
                for offset in order
            ]
            for corner in corners[:num_replicas]
        ]
        return DeviceAssignment(topology, np.asarray(cores, np.int32))


def _sizes(name: str, given: Sequence[int] | None, rank: int) -> list[int]:
    if given is None:
        return [1] * rank
    sizes = np.asarray(given)
    if sizes.shape != (rank,) or sizes.dtype.kind not in "iu" or (sizes < 1).any():
        raise ValueError(f"{name} is {given!r}; expected {rank} ints of at least 1.")
    return [int(size) for size in sizes]


def _rows(shape: Sequence[int]) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, shape)))


def _ring(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """All places of a block, each next to the one before it: every second row goes backwards."""
    if not shape:
        return [()]
    rest = _ring(shape[1:])
    return [
        (first, *place)
        for first in range(shape[0])
        for place in (rest if first % 2 == 0 else rest[::-1])
    ]
