"""What runs in the launcher for the workers of an attempt, given by the caller.

The place for a coordination service that outlives every worker: the supervisor starts it
before the workers, hands its variables to them, and stops it after them. ``replicax launch``
has the one of `service`. Without one the workers meet at worker 0, and when worker 0 is lost JAX
ends the others before they can say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Coordination(Protocol):
    """A service for the workers of one attempt after the other.

    It may have a third method, ``trouble()``, which is called several times a second while workers
    run: what is wrong with the service, or an empty string. With trouble, the attempt has failed.

    Example:
        >>> class Announced:
        ...     def start(self, addresses, *, attempt):
        ...         return {"REPLICAX_COORDINATION_ADDRESS": "127.0.0.1:5000"}
        ...     def stop(self):
        ...         pass
        >>> service: Coordination = Announced()
    """

    def start(self, addresses: Sequence[str], *, attempt: int) -> Mapping[str, str]:
        """Starts for the workers at `addresses`; returns variables that each of them gets."""
        ...

    def stop(self) -> None:
        """Stops; called after all workers have ended, also if `start` failed."""
        ...


class WithoutCoordination:
    """No service: the workers meet at worker 0.

    Example:
        >>> WithoutCoordination().start(["127.0.0.1:5000"], attempt=1)
        {}
    """

    def start(self, addresses: Sequence[str], *, attempt: int) -> Mapping[str, str]:
        """Starts nothing."""
        return {}

    def stop(self) -> None:
        """Has nothing to stop."""
