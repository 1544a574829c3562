"""Workers and servers in this process: the transport that needs no server.

Each worker runs on the coordinator's thread for it, and calls the servers as objects. Arrays are
handed over, not copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from replicax.parameter_server.server import ServerState
from replicax.parameter_server.transport import Listener, Server, Worker
from replicax.parameter_server.worker import WorkerState


class EmbeddedTransport:
    """Implements `transport.Transport`.

    Attributes:
        servers: The servers.
        workers: The workers.
    """

    def __init__(self, *, num_workers: int, num_servers: int) -> None:
        """So many of each."""
        self.servers: Sequence[Server] = [ServerState() for _ in range(num_servers)]
        self.workers: Sequence[Worker] = [
            WorkerState(index, self.servers) for index in range(num_workers)
        ]

    def watch(self, listener: Listener) -> None:
        """Nothing comes or goes here."""

    def close(self) -> None:
        """Nothing was started."""
