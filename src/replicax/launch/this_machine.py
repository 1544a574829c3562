"""Workers as processes of this machine, at ports of its loopback interface."""

from __future__ import annotations

import os
from collections.abc import Mapping

from replicax.cluster import addresses
from replicax.cluster.addresses import Address
from replicax.launch.guard import Guard
from replicax.launch.plan import WorkerPlan
from replicax.launch.spawn import WorkerProcess

LOOPBACK = "127.0.0.1"


class ThisMachine:
    """A `Place` for workers that no other machine can reach.

    Example:
        >>> place = ThisMachine()
        >>> [address.partition(":")[0] for address in place.reserve(2)]
        ['127.0.0.1', '127.0.0.1']
        >>> place.close()
    """

    def __init__(self) -> None:
        self._guard = Guard()

    @property
    def environment(self) -> Mapping[str, str]:
        """All variables."""
        return os.environ

    def reserve(self, num_workers: int) -> tuple[str, ...]:
        """Finds free ports."""
        self._guard.revive()
        ports = addresses.free_ports(num_workers, LOOPBACK)
        return tuple(str(Address(LOOPBACK, port)) for port in ports)

    def start(self, plan: WorkerPlan) -> WorkerProcess:
        """Starts a process."""
        return WorkerProcess(plan, self._guard)

    def close(self) -> None:
        """Ends the guard."""
        self._guard.close()
