"""`OneDeviceStrategy`: everything on one chosen device."""

from __future__ import annotations

from typing import Any

from replicax.engine.protocols import StrategyLike
from replicax.strategies.base import Strategy
from replicax.strategies.extended import StrategyExtended


class OneDeviceExtended(StrategyExtended):
    """One replica on one device."""

    def __init__(self, container_strategy: StrategyLike, device: Any) -> None:
        super().__init__(container_strategy)
        self.set_replica_devices([device])


class OneDeviceStrategy(Strategy):
    """Runs on one device; variables and computation are placed there.

    Useful to try a distributed program on one device before it runs on many.

    Args:
        device: A JAX device, or a name such as ``"CPU:0"`` or ``"GPU:1"``.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.OneDeviceStrategy("CPU:1")
        >>> strategy.run(lambda x: x + 1.0, args=(2.0,))
        3.0
    """

    def __init__(self, device: Any) -> None:
        super().__init__(OneDeviceExtended(self, device))
