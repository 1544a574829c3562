"""`CentralStorageStrategy`: variables on one device, computation on several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replicax.backend import devices as backend_devices
from replicax.core.enums import VariableSynchronization
from replicax.engine.protocols import StrategyLike
from replicax.strategies.base import Strategy
from replicax.strategies.extended import StrategyExtended
from replicax.variables.colocation import asked_devices
from replicax.variables.creation import build_variable
from replicax.variables.variable import Variable


class CentralStorageExtended(StrategyExtended):
    """Replicas on the compute devices, variables on the parameter device."""

    def __init__(
        self,
        container_strategy: StrategyLike,
        compute_devices: Sequence[Any] | None,
        parameter_device: Any,
    ) -> None:
        """Uses all local devices to compute, and the first one to store, unless told otherwise."""
        super().__init__(container_strategy)
        self.set_replica_devices(compute_devices)
        self._home = (
            self.mesh.devices[0]
            if parameter_device is None
            else backend_devices.resolve_device(parameter_device)
        )

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The one device that holds variables."""
        return (backend_devices.device_name(self._home),)

    def create_variable(self, **options: Any) -> Variable:
        """One copy on the parameter device; sync-on-read variables stay with the replicas.

        Args:
            **options: The arguments of ``Variable``, by name.

        Returns:
            The variable.
        """
        on_read = options["synchronization"] is VariableSynchronization.ON_READ
        if on_read or asked_devices() is not None:
            return super().create_variable(**options)
        return build_variable(home=self._home, strategy=self._container_strategy, **options)


class CentralStorageStrategy(Strategy):
    """Computes on several devices and keeps every variable once, on one device.

    Args:
        compute_devices: Where the replicas run; all local devices if None.
        parameter_device: Where variables are; the first compute device if None.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.experimental.CentralStorageStrategy(["CPU:1", "CPU:2"], "CPU:0")
        >>> strategy.extended.parameter_devices, strategy.extended.worker_devices
        (('CPU:0',), ('CPU:1', 'CPU:2'))
        >>> with strategy.scope():
        ...     v = rx.Variable(1.0, aggregation=rx.VariableAggregation.SUM)
        >>> strategy.run(rx.function(lambda: v.assign_add(1.0).value))
        PerReplica:{
          0: Array(3., dtype=float32),
          1: Array(3., dtype=float32)
        }
    """

    def __init__(
        self, compute_devices: Sequence[Any] | None = None, parameter_device: Any = None
    ) -> None:
        """A strategy on `compute_devices` and `parameter_device`."""
        super().__init__(CentralStorageExtended(self, compute_devices, parameter_device))
