"""The process of one server or worker: a listener for everything that is not pickled.

It is a Ray actor, to which Ray brings what is pickled: optimizers, and functions that make
datasets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from replicax.parameter_server.calls import ServerStub, written_error
from replicax.parameter_server.messages import DatasetSpec, OptimizerSpec
from replicax.parameter_server.server import ServerState
from replicax.parameter_server.wire import CallListener
from replicax.parameter_server.worker import WorkerState

SERVER_CALLS = (
    *("create", "drop", "read", "gather", "stage"),
    *("commit", "abort", "decided", "snapshot", "restore"),
)
WORKER_CALLS = ("register_program", "make_iterator", "run")

TaskAddress = tuple[str, int]


class ServerTask:
    """One parameter server.

    Args:
        host: The address of its node, at which it listens.
        token: What callers must hold.
        replaces: The number of the lost server whose place it takes; None for a first one.

    Example:
        >>> task = ServerTask("127.0.0.1", b"secret")
        >>> host, port, pid = task.place()
        >>> host, pid == os.getpid()
        ('127.0.0.1', True)
    """

    def __init__(self, host: str, token: bytes, replaces: int | None = None) -> None:
        self._host = host
        self._state = ServerState(replaces=replaces)
        self._listener = CallListener(host, token, self._answer, written_error)

    def place(self) -> tuple[str, int, int]:
        """The host and the port at which it listens, and its process."""
        return self._host, self._listener.port, os.getpid()

    def register_optimizer(self, spec: OptimizerSpec) -> None:
        """See `transport.Server.register_optimizer`."""
        self._state.register_optimizer(spec)

    def _answer(self, name: str, *arguments: Any) -> Any:
        if name == "ping":
            return None
        if name not in SERVER_CALLS:
            raise ValueError(f"a server has no method {name!r}.")
        return getattr(self._state, name)(*arguments)


class WorkerTask:
    """One worker.

    Args:
        host: The address of its node, at which it listens.
        token: What callers must hold, and servers ask for.
        index: Its number.
        servers: Where the servers are now; each beat says it again.
    """

    def __init__(
        self, host: str, token: bytes, index: int, servers: Sequence[TaskAddress | None]
    ) -> None:
        self._servers = [ServerStub(number, token) for number in range(len(servers))]
        self._addresses: list[TaskAddress | None] = [None] * len(servers)
        self._set_servers(servers)
        self._host = host
        self._state = WorkerState(index, self._servers)  # pyright: ignore[reportArgumentType]
        self._listener = CallListener(host, token, self._answer, written_error)

    def place(self) -> tuple[str, int, int]:
        """The host and the port at which it listens, and its process."""
        return self._host, self._listener.port, os.getpid()

    def make_dataset(self, dataset_id: int, dataset_fn: Callable[[], Any]) -> DatasetSpec:
        """See `transport.Worker.make_dataset`."""
        return self._state.make_dataset(dataset_id, dataset_fn)

    def _set_servers(self, addresses: Sequence[TaskAddress | None]) -> None:
        """Says where all servers are, None for one that is lost; calls to others go on."""
        for number, (address, stub) in enumerate(zip(addresses, self._servers, strict=True)):
            if address == self._addresses[number]:
                continue
            self._addresses[number] = address
            if address is None:
                stub.lost("it was lost")
            else:
                stub.found_at(*address)

    def _answer(self, name: str, *arguments: Any) -> Any:
        if name == "ping":
            return self._set_servers(*arguments)
        if name not in WORKER_CALLS:
            raise ValueError(f"a worker has no method {name!r}.")
        return getattr(self._state, name)(*arguments)
