"""Central variables: one copy on one device, read by every replica."""

from __future__ import annotations

from replicax.core.typing import Device
from replicax.values.distributed import register_as_array
from replicax.variables.mirrored import MirroredVariable


@register_as_array
class CentralVariable(MirroredVariable):
    """A variable that is stored once, away from the replicas.

    Reads give its value everywhere. An assignment in a replica is combined over
    all replicas by the aggregation, as for mirrored variables.
    """

    __slots__ = ()

    @property
    def _devices_in_order(self) -> tuple[Device, ...]:
        """The one device that holds it."""
        return (self._storage.home,)

    def devices(self) -> set[Device]:
        """The one device that holds it."""
        return {self._storage.home}

    def _copy_id(self) -> int | None:
        return None if super()._copy_id() is None else 0
