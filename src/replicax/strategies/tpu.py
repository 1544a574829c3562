"""`TPUStrategy`: replicas on TPU devices, or on the devices that stand for them.

A replica may span several logical devices, as a `DeviceAssignment` says.
"""

from __future__ import annotations

import jax

from replicax.backend import devices
from replicax.backend.device_assignment import DeviceAssignment
from replicax.backend.mesh import logical_mesh
from replicax.cluster.resolver import ClusterResolver
from replicax.cluster.tpu import TPUClusterResolver
from replicax.core.sharding import Sharding
from replicax.core.typing import Device
from replicax.engine.protocols import StrategyLike
from replicax.strategies.base import Strategy
from replicax.strategies.extended import StrategyExtended
from replicax.variables.partitioning import Rules


class TPUExtended(StrategyExtended):
    """Replicas on the devices of an assignment."""

    def __init__(
        self,
        container_strategy: StrategyLike,
        resolver: ClusterResolver,
        assignment: DeviceAssignment | None,
        partition_rules: Rules | None,
        sharding: Sharding | None,
    ) -> None:
        """Uses the devices of `assignment`, or one local device for each replica."""
        super().__init__(container_strategy)
        self.cluster_resolver = resolver
        rows = (
            tuple((device,) for device in devices.local_devices())
            if assignment is None
            else _rows_of(assignment)
        )
        self._set_logical_mesh(logical_mesh(rows), partition_rules)
        self.set_sharding(sharding)


def _rows_of(assignment: DeviceAssignment) -> tuple[tuple[Device, ...], ...]:
    """The logical devices of each replica."""
    platform = devices.local_devices()[0].platform
    tasks: dict[int, list[Device]] = {}
    for device in sorted(jax.devices(platform), key=lambda d: (d.process_index, d.id)):
        tasks.setdefault(device.process_index, []).append(device)
    found = list(tasks.values())
    topology = assignment.topology
    if (topology.num_tasks, topology.num_tpus_per_task) != (len(found), len(found[0])):
        raise ValueError(
            f"the device assignment is for {topology.num_tasks} tasks with "
            f"{topology.num_tpus_per_task} devices each; there are {len(found)} with "
            f"{len(found[0])} here. Build it from initialize_tpu_system() of this program."
        )

    def device_at(replica: int, core: int) -> Device:
        place = assignment.coordinates(replica, core)
        task = topology.task_ordinal_at_coordinates(place)
        return found[task][topology.tpu_device_ordinal_at_coordinates(place)]

    rows = tuple(
        tuple(device_at(replica, core) for core in range(assignment.num_cores_per_replica))
        for replica in range(assignment.num_replicas)
    )
    here = jax.process_index()
    for replica, row in enumerate(rows):
        elsewhere = [device for device in row if device.process_index != here]
        if elsewhere:
            raise ValueError(
                f"the device assignment puts replica {replica} on "
                f"{devices.device_name(elsewhere[0])}, which is a device of process "
                f"{elsewhere[0].process_index}; this is process {here} of {len(found)}, and "
                "TPUStrategy runs in one process. Use MultiWorkerMirroredStrategy for replicas on "
                "several, or assign devices of this process only."
            )
    return rows


class TPUStrategy(Strategy):
    """Trains on TPU devices, in step; without TPUs, on the devices that stand for them.

    Args:
        tpu_cluster_resolver: What knows the TPU; the one of this machine if None.
        experimental_device_assignment: Which devices each replica spans; one each if None.
        experimental_spmd_xla_partitioning: Accepted: replicas are always partitioned by XLA.
        partition_rules: As of ``MirroredStrategy``.
        sharding: As of ``MirroredStrategy``.

    Raises:
        ValueError: If the assignment is for other devices, or for those of other processes.

    Example:
        >>> import warnings
        >>> import replicax.tf as tf
        >>> with warnings.catch_warnings(action="ignore"):
        ...     resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="")
        >>> topology = tf.tpu.experimental.initialize_tpu_system(resolver)
        >>> assignment = tf.tpu.experimental.DeviceAssignment.build(
        ...     topology, computation_shape=[1, 1, 1, 2], num_replicas=4)
        >>> strategy = tf.distribute.TPUStrategy(resolver, assignment)
        >>> print(strategy.describe())
        TPUStrategy, 4 replicas of 2 logical devices
        replica  device  kind  logical devices
        0        CPU:0   cpu   CPU:0, CPU:1
        1        CPU:2   cpu   CPU:2, CPU:3
        2        CPU:4   cpu   CPU:4, CPU:5
        3        CPU:6   cpu   CPU:6, CPU:7
    """

    def __init__(
        self,
        tpu_cluster_resolver: ClusterResolver | None = None,
        experimental_device_assignment: DeviceAssignment | None = None,
        experimental_spmd_xla_partitioning: bool = True,
        *,
        partition_rules: Rules | None = None,
        sharding: Sharding | None = None,
    ) -> None:
        """A strategy on the devices of the assignment."""
        del experimental_spmd_xla_partitioning
        assignment = experimental_device_assignment
        if assignment is not None and not isinstance(assignment, DeviceAssignment):
            raise TypeError(
                f"experimental_device_assignment is {assignment!r}; expected a DeviceAssignment."
            )
        resolver = TPUClusterResolver() if tpu_cluster_resolver is None else tpu_cluster_resolver
        super().__init__(TPUExtended(self, resolver, assignment, partition_rules, sharding))


class ExperimentalTPUStrategy(TPUStrategy):
    """`TPUStrategy` with the arguments that it had under ``experimental``.

    Args:
        tpu_cluster_resolver: What knows the TPU; the one of this machine if None.
        device_assignment: Which devices each replica spans; one each if None.

    Example:
        >>> import warnings
        >>> import replicax as rx
        >>> with warnings.catch_warnings(action="ignore"):
        ...     rx.experimental.TPUStrategy().num_replicas_in_sync
        8
    """

    def __init__(
        self,
        tpu_cluster_resolver: ClusterResolver | None = None,
        device_assignment: DeviceAssignment | None = None,
    ) -> None:
        """A strategy on the devices of the assignment."""
        super().__init__(tpu_cluster_resolver, device_assignment)
