"""`MirroredStrategy`: one replica per device of this machine, variables mirrored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replicax.core.sharding import Sharding
from replicax.engine.protocols import StrategyLike
from replicax.strategies.base import Strategy
from replicax.strategies.cross_device_ops import CrossDeviceOps
from replicax.strategies.extended import StrategyExtended
from replicax.variables.partitioning import Rules


class MirroredExtended(StrategyExtended):
    """Replicas on the devices of one machine."""

    def __init__(
        self,
        container_strategy: StrategyLike,
        devices: Sequence[Any] | None,
        cross_device_ops: CrossDeviceOps | None,
        logical_devices: int,
        partition_rules: Rules | None,
        sharding: Sharding | None,
    ) -> None:
        """Uses `devices`, or all local ones."""
        super().__init__(container_strategy)
        self.set_replica_devices(devices, cross_device_ops, logical_devices, partition_rules)
        self.set_sharding(sharding)


class MirroredStrategy(Strategy):
    """Trains on several devices of one machine, in step.

    Each variable created in its scope has one copy per replica, and the copies
    are kept equal.

    Args:
        devices: JAX devices, or names such as ``["GPU:0", "GPU:1"]``; all local
            devices of JAX's default platform if None.
        cross_device_ops: How values of different devices are added.
        logical_devices: How many of the devices, one after the other, each replica spans.
        partition_rules: How variables are cut over the logical devices of a replica: pairs of
            a regular expression, searched for in the name, and what
            ``Variable(..., partition_dimensions=)`` takes, or None for whole variables. The
            first match wins; variables without one are whole on every logical device.
        sharding: What of the training state is split over the replicas; if None, every replica
            has all of it.

    Example:
        >>> import replicax as rx
        >>> rx.MirroredStrategy(["CPU:0", "CPU:1"])
        <MirroredStrategy: 2 replicas on CPU:0, CPU:1>
    """

    def __init__(
        self,
        devices: Sequence[Any] | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
        *,
        logical_devices: int = 1,
        partition_rules: Rules | None = None,
        sharding: Sharding | None = None,
    ) -> None:
        super().__init__(
            MirroredExtended(
                self, devices, cross_device_ops, logical_devices, partition_rules, sharding
            )
        )
