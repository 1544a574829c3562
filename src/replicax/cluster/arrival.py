"""The start of a cluster: every worker reports to the first one before any of them joins.

JAX ends a process whose peers do not come, without saying who is missing. So the workers meet
here first, over a plain connection to the address of worker 0: it waits for all, compares what
must be the same everywhere, and tells every worker to go on, or why not.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from replicax.backend import cpu_client
from replicax.cluster.addresses import parse_address, resolve_host
from replicax.cluster.wire import Connection
from replicax.core.errors import ClusterPlatformError, WorkerLostError, WorkersDifferError

_RETRY_SECONDS = 0.1
_ANSWER_SECONDS = 10.0


def own_facts() -> dict[str, str]:
    """What must be the same on all workers, by what messages call it.

    Example:
        >>> sorted(own_facts())[:2]
        ['CPU devices', 'JAX']
    """
    return {
        "Python": platform.python_version(),
        "JAX": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "CPU devices": str(cpu_client.num_configured_cpu_devices()),
    }


def meet(
    addresses: Sequence[str],
    rank: int,
    *,
    names: Sequence[str],
    facts: Mapping[str, str],
    seconds: float,
) -> None:
    """Returns when all workers have arrived.

    Args:
        addresses: Of all workers, by rank.
        rank: Which of them this process is.
        names: What messages call them.
        facts: What must be the same everywhere.
        seconds: How long to wait for all.

    Raises:
        WorkerLostError: If a worker has not arrived in time; it names those.
        WorkersDifferError: If `facts` differ; it names the workers and the values.
    """
    if rank == 0:
        _Host(addresses[0], names, dict(facts), seconds).meet()
    else:
        _report(addresses[0], rank, names, dict(facts), seconds)


class _Host:
    """Worker 0, which all others report to."""

    def __init__(
        self, address: str, names: Sequence[str], facts: dict[str, str], seconds: float
    ) -> None:
        self._address = parse_address(address)
        self._names = names
        self._facts = facts
        self._seconds = seconds
        self._arrived: dict[int, Connection] = {}

    def meet(self) -> None:
        end = time.monotonic() + self._seconds
        with self._listener() as listener:
            try:
                while len(self._arrived) < len(self._names) - 1:
                    listener.settimeout(max(end - time.monotonic(), 0.001))
                    try:
                        sock, _ = listener.accept()
                    except TimeoutError:
                        self._refuse(WorkerLostError, *self._missing())
                    else:
                        self._admit(sock)
                for connection in self._arrived.values():
                    connection.send({"type": "go"})
            finally:
                for connection in self._arrived.values():
                    connection.close()

    def _listener(self) -> socket.socket:
        host = resolve_host(self._address.host)[0]
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, self._address.port))
            listener.listen(len(self._names))
        except OSError as error:
            listener.close()
            raise ClusterPlatformError(
                f"{self._names[0]} cannot listen on {self._address} ({error}). Is another program "
                "of this job still running, or is the address that of another machine?"
            ) from error
        return listener

    def _admit(self, sock: socket.socket) -> None:
        connection = Connection(sock, "a worker")
        try:
            message = connection.receive(_ANSWER_SECONDS) or {}
        except ClusterPlatformError:  # whatever it was, it is no worker of ours
            connection.close()
            return
        rank, facts = message.get("rank"), message.get("facts")
        known = isinstance(rank, int) and 0 < rank < len(self._names)
        if not known or not isinstance(facts, dict) or message.get("of") != len(self._names):
            connection.close()
            return
        if rank in self._arrived:
            with contextlib.suppress(ClusterPlatformError):
                connection.send(
                    {"type": "refused", "reason": f"there is a {self._names[rank]} already."}
                )
            connection.close()
            return
        self._arrived[rank] = connection
        different = [
            f"{what} is {self._facts.get(what)} on {self._names[0]} and {facts.get(what)} on "
            f"{self._names[rank]}"
            for what in self._facts
            if facts.get(what) != self._facts[what]
        ]
        if different:
            self._refuse(
                WorkersDifferError,
                f"the workers are not set up alike: {'; '.join(different)}. Install the same "
                "versions everywhere, and give every worker the same number of devices.",
            )

    def _missing(self) -> tuple[str, tuple[int, ...]]:
        missing = tuple(r for r in range(1, len(self._names)) if r not in self._arrived)
        names = ", ".join(self._names[rank] for rank in missing)
        return (
            f"after {self._seconds:g} s not arrived: {names}. Start every worker with the same "
            "cluster, and check that they reach each other with `replicax doctor --cluster`.",
            missing,
        )

    def _refuse(self, kind: Any, reason: str, *details: Any) -> None:
        for connection in self._arrived.values():
            with contextlib.suppress(ClusterPlatformError):  # it is told as well as can be
                connection.send({"type": kind.__name__, "reason": reason})
        raise kind(reason, *details)


def _report(
    address: str, rank: int, names: Sequence[str], facts: dict[str, str], seconds: float
) -> None:
    end = time.monotonic() + seconds
    connection = _connected(address, names[0], end, seconds)
    try:
        connection.send({"type": "here", "rank": rank, "of": len(names), "facts": facts})
        answer = connection.receive(max(end - time.monotonic(), 0.0) + _ANSWER_SECONDS)
    except ClusterPlatformError as error:
        raise WorkerLostError(f"{names[0]} went away at the start. ({error})", (0,)) from error
    finally:
        connection.close()
    if answer is None:
        raise WorkerLostError(f"{names[0]} did not say within {seconds:g} s to go on.", (0,))
    if answer.get("type") == WorkerLostError.__name__:
        raise WorkerLostError(str(answer.get("reason")))
    if answer.get("type") != "go":
        raise WorkersDifferError(str(answer.get("reason")))


def _connected(address: str, name: str, end: float, seconds: float) -> Connection:
    host = parse_address(address)
    while True:
        try:
            sock = socket.create_connection((host.host, host.port), timeout=_ANSWER_SECONDS)
            return Connection(sock, name)
        except OSError as error:
            if time.monotonic() > end:
                raise WorkerLostError(
                    f"{name} could not be reached within {seconds:g} s ({error}). Start every "
                    "worker, and check the addresses with `replicax doctor --cluster`.",
                    (0,),
                ) from error
            time.sleep(_RETRY_SECONDS)
