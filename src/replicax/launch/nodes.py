"""What the launchers of several machines have to agree on, and how one alone answers.

`leader` has the launcher of node 0, which decides, and `follower` the others, which follow.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from replicax.cluster import addresses
from replicax.cluster.addresses import Address
from replicax.core.errors import ClusterError
from replicax.launch.outcome import Ending, Outcome
from replicax.launch.plan import Layout
from replicax.launch.restart import Decision, RestartPolicy

LOOPBACK = "127.0.0.1"

StartCoordination: TypeAlias = Callable[[Sequence[str]], Mapping[str, str]]


class Nodes(Protocol):
    """The launchers of one job, one on each machine.

    Example:
        >>> nodes: Nodes = OneNode(num_workers=2)
    """

    node_id: int

    def meet(self, start: StartCoordination) -> Layout | None:
        """Finds ports for this machine's workers and learns those of all others.

        Args:
            start: Starts the coordination service; called on node 0 only.

        Returns:
            Where all workers are; None if the wait for the others was interrupted.

        Raises:
            ClusterError: If the nodes do not fit together.
            ClusterPlatformError: If a node does not come in time, or is lost.
        """
        ...

    def report(self, ending: Ending) -> None:
        """Tells the other nodes that the workers of this one are about to end like this."""
        ...

    def poll(self) -> Ending | None:
        """How the workers of another node are about to end; None while they run."""
        ...

    def decide(self, outcome: Outcome, policy: RestartPolicy) -> Decision:
        """What follows; the same answer on every node."""
        ...

    def close(self) -> None:
        """Leaves the others."""
        ...


class OneNode:
    """All workers are on this machine; nothing is sent anywhere.

    Args:
        num_workers: How many.

    Example:
        >>> layout = OneNode(num_workers=2).meet(lambda addresses: {})
        >>> [address.partition(":")[0] for address in layout.addresses]
        ['127.0.0.1', '127.0.0.1']
    """

    node_id = 0

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers

    def meet(self, start: StartCoordination) -> Layout | None:
        """Finds free ports on the loopback interface."""
        found = own_addresses(LOOPBACK, self._num_workers)
        return Layout(found, environment=start(found))

    def report(self, ending: Ending) -> None:
        """There is nobody to tell."""

    def poll(self) -> Ending | None:
        """There is nobody to hear from."""

    def decide(self, outcome: Outcome, policy: RestartPolicy) -> Decision:
        """The policy decides."""
        return policy.decide(outcome)

    def close(self) -> None:
        """There is nobody to leave."""


def check_one_interface(host: str) -> None:
    """Refuses a host that stands for all interfaces of a machine.

    Raises:
        ClusterError: If `host` does, or is not known here.

    Example:
        >>> check_one_interface("127.0.0.1")
    """
    ip = addresses.resolve_host(host)[0].partition("%")[0]
    if ipaddress.ip_address(ip).is_unspecified:
        raise ClusterError(
            f"{host!r} means every interface of a machine: other machines cannot connect to it, "
            "and a listener would be open to all networks. Give the address of one interface."
        )


def own_addresses(host: str, num_workers: int) -> tuple[str, ...]:
    """Addresses of workers on this machine, which `host` must be a name of.

    Raises:
        ClusterError: If it is not.

    Example:
        >>> len(own_addresses("127.0.0.1", 3))
        3
    """
    check_one_interface(host)
    ports = addresses.free_ports(num_workers, addresses.resolve_host(host)[0])
    return tuple(str(Address(host, port)) for port in ports)
