"""How a strategy adds values of different devices; accepted by ``MirroredStrategy``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from replicax.backend import devices
from replicax.backend.collectives import Reduction
from replicax.backend.mesh import ReplicaMesh
from replicax.core import notices
from replicax.core.errors import UnknownDeviceError


class CrossDeviceOps:
    """Base: the default all-reduce of XLA, small values packed together.

    Example:
        >>> import replicax as rx
        >>> rx.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=rx.CrossDeviceOps())
        <MirroredStrategy: 2 replicas on CPU:0, CPU:1>
    """

    def _reduction(self, mesh: ReplicaMesh) -> Reduction:
        """What the programs of a strategy on `mesh` do."""
        del mesh
        return Reduction()


class ReductionToOneDevice(CrossDeviceOps):
    """Brings all values to one device, adds them there, and sends the sum back.

    Args:
        reduce_to_device: The device that adds; the first replica's if None.
        accumulation_fn: Adds a list of arrays; a plain sum if None.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(
        ...     ["CPU:0", "CPU:1"], cross_device_ops=rx.ReductionToOneDevice("CPU:1"))
        >>> value = strategy.experimental_distribute_values_from_function(lambda ctx: 2.0)
        >>> strategy.reduce("SUM", value, axis=None)
        Array(4., dtype=float32)
    """

    def __init__(
        self,
        reduce_to_device: Any = None,
        accumulation_fn: Callable[[list[jax.Array]], jax.Array] | None = None,
    ) -> None:
        """Chooses the device and the addition."""
        self._device = reduce_to_device
        self._accumulate = accumulation_fn

    def _reduction(self, mesh: ReplicaMesh) -> Reduction:
        """Gather, add on the replica of that device, send back."""
        if self._device is None:
            return Reduction(on_replica=0, accumulate=self._accumulate)
        device = devices.resolve_device(self._device)
        if device not in mesh.devices:
            names = [devices.device_name(d) for d in mesh.devices]
            raise UnknownDeviceError(
                f"ReductionToOneDevice({self._device!r}) names a device that is not one of the "
                f"strategy's: {names}. Choose one of them."
            )
        return Reduction(on_replica=mesh.devices.index(device), accumulate=self._accumulate)


class _PackedAllReduce(CrossDeviceOps):
    """An all-reduce with a chosen number of packs."""

    def __init__(self, num_packs: int = 1) -> None:
        """Packs small values into `num_packs` operands; 0 packs nothing.

        Raises:
            ValueError: If `num_packs` is negative.
        """
        if num_packs < 0:
            raise ValueError(f"num_packs is {num_packs}; expected 0 or more.")
        self._num_packs = num_packs

    def _reduction(self, mesh: ReplicaMesh) -> Reduction:
        """The default all-reduce, with this number of packs."""
        name = type(self).__name__
        notices.notify_once(
            ("cross device ops", name),
            f"{name} is the default all-reduce here: XLA chooses the algorithm for the platform. "
            "Its num_packs takes effect.",
        )
        return Reduction(num_packs=self._num_packs)


class NcclAllReduce(_PackedAllReduce):
    """The default all-reduce; `num_packs` sets the packing.

    Args:
        num_packs: Into how many operands small values are packed; 0 packs nothing.

    Example:
        >>> import replicax as rx
        >>> isinstance(rx.NcclAllReduce(num_packs=2), rx.CrossDeviceOps)
        True
    """


class HierarchicalCopyAllReduce(_PackedAllReduce):
    """The default all-reduce; `num_packs` sets the packing.

    Args:
        num_packs: Into how many operands small values are packed; 0 packs nothing.

    Example:
        >>> import replicax as rx
        >>> isinstance(rx.HierarchicalCopyAllReduce(), rx.CrossDeviceOps)
        True
    """
