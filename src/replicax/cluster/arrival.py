"""The start of a cluster: every worker reports to the first one before any of them joins.

JAX ends a process whose peers do not come, without saying who is missing. So the workers meet
here first, over a plain connection to the address of worker 0: it waits for all, compares what
must be the same everywhere, and tells every worker to go on, or why not.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import jax

from replicax.backend import cpu_client
from replicax.cluster.addresses import Address, parse_address
from replicax.cluster.wire import Connection
from replicax.core.errors import (
    ClusterError,
    ClusterPlatformError,
    WorkerLostError,
    WorkersDifferError,
)

START_VARIABLE = "REPLICAX_START_SECONDS"
"""How long the workers wait for each other at the start, if it is to be another time."""

DEFAULT_START_SECONDS = 300.0

_MAX_START_SECONDS = 1e8  # JAX counts them in 32 bits
_RETRY_SECONDS = 0.1
_ANSWER_SECONDS = 10.0

# Of those who have not said who they are: nobody can fill the memory or use up the connections.
_MAX_ASKING = 256
_MAX_REPORT_BYTES = 65536
_MAX_FACTS = 50
_MAX_FACT = 200
_MAX_REASON = 4000


def start_seconds() -> float:
    """How long the workers wait for each other at the start.

    Raises:
        ClusterError: If the variable is not a number of seconds.

    Example:
        >>> start_seconds()
        300.0
    """
    text = os.environ.get(START_VARIABLE, "").strip()
    if not text:
        return DEFAULT_START_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= _MAX_START_SECONDS:
        raise ClusterError(
            f"{START_VARIABLE} is {text!r}; expected a number of seconds more than 0 and at most "
            f"{_MAX_START_SECONDS:g}, as {DEFAULT_START_SECONDS:g}."
        )
    return seconds


def own_facts() -> dict[str, str]:
    """What must be the same on all workers, by what messages call it.

    Example:
        >>> sorted(own_facts())[:2]
        ['CPU devices', 'JAX']
    """
    return {
        "Python": platform.python_version(),
        "Replicax": _version("replicax"),
        "JAX": jax.__version__,
        "jaxlib": _version("jaxlib"),
        "CPU devices": str(cpu_client.num_configured_cpu_devices()),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # run from its source
        return "not installed"


def meet(
    addresses: Sequence[str],
    rank: int,
    *,
    names: Sequence[str],
    host: str,
    facts: Mapping[str, str],
    seconds: float,
) -> None:
    """Returns when all workers have arrived.

    Args:
        addresses: Of all workers, by rank.
        rank: Which of them this process is.
        names: What messages call them.
        host: The IP address of this process.
        facts: What must be the same everywhere.
        seconds: How long to wait for all.

    Raises:
        WorkerLostError: If a worker has not arrived in time; it names those.
        WorkersDifferError: If `facts` differ; it names the workers and the values.
    """
    if rank == 0:
        _Host(Address(host, parse_address(addresses[0]).port), names, dict(facts), seconds).meet()
    else:
        _report(addresses[0], rank, names, dict(facts), seconds)


class _Host:
    """Worker 0, which all others report to."""

    def __init__(
        self, address: Address, names: Sequence[str], facts: dict[str, str], seconds: float
    ) -> None:
        self._address = address
        self._names = names
        self._facts = facts
        self._seconds = seconds
        self._asking: dict[Connection, float] = {}  # until when each may say who it is
        self._arrived: dict[int, Connection] = {}
        self._facts_of: dict[int, dict[str, str]] = {}

    def meet(self) -> None:
        end = time.monotonic() + self._seconds
        with self._listener() as listener:
            try:
                while not self._are_all_here() and time.monotonic() < end:
                    self._accept(listener)
                    self._hear_who_asks()
                    self._forget_who_left()
                self._check()
                for connection in self._arrived.values():
                    connection.send({"type": "go"})
            finally:
                for connection in (*self._asking, *self._arrived.values()):
                    connection.close()

    def _are_all_here(self) -> bool:
        return len(self._arrived) == len(self._names) - 1

    def _accept(self, listener: socket.socket) -> None:
        """Waits a moment for somebody to come, and lets in all who are there by then."""
        for seconds in (_RETRY_SECONDS, *(0.0,) * _MAX_ASKING):
            listener.settimeout(seconds)
            try:
                sock, _ = listener.accept()
                connection = Connection(sock, "a worker", max_bytes=_MAX_REPORT_BYTES)
            except (TimeoutError, BlockingIOError):
                return
            except OSError:  # it has gone again, or this process has no more files to open
                time.sleep(_RETRY_SECONDS)
                return
            self._asking[connection] = time.monotonic() + _ANSWER_SECONDS
            if len(self._asking) > _MAX_ASKING:
                oldest = next(iter(self._asking))
                del self._asking[oldest]
                oldest.close()

    def _hear_who_asks(self) -> None:
        for connection, until in list(self._asking.items()):
            is_admitted = False
            with contextlib.suppress(Exception):  # whatever it was, it is no worker of ours
                message = connection.receive(0.0)
                if message is None and time.monotonic() <= until:
                    continue
                is_admitted = self._admit(connection, message or {})
            del self._asking[connection]
            if not is_admitted:
                connection.close()

    def _forget_who_left(self) -> None:
        """A worker that is gone may come again: what started it may start it again."""
        for rank, connection in list(self._arrived.items()):
            try:
                connection.receive(0.0)
            except ClusterPlatformError:
                connection.close()
                del self._arrived[rank], self._facts_of[rank]

    def _listener(self) -> socket.socket:
        host = self._address.host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, self._address.port))
            listener.listen(_MAX_ASKING)
        except OSError as error:
            listener.close()
            raise ClusterPlatformError(
                f"{self._names[0]} cannot listen on {self._address} ({error}). Is another program "
                "of this job still running, or is the address that of another machine?"
            ) from error
        return listener

    def _admit(self, connection: Connection, message: dict[str, Any]) -> bool:
        rank, facts = message.get("rank"), message.get("facts")
        if type(rank) is not int or not 0 < rank < len(self._names):
            return False
        if not _are_facts(facts) or message.get("of") != len(self._names):
            return False
        if rank in self._arrived:
            reason = f"there is a {self._names[rank]} already. Start each worker once."
            with contextlib.suppress(ClusterPlatformError):
                connection.send({"type": WorkersDifferError.__name__, "reason": reason})
            return False
        self._arrived[rank], self._facts_of[rank] = connection, facts
        return True

    def _check(self) -> None:
        """Raises, here and on all workers that have arrived, unless all is well."""
        different = [
            f"{what} is {fact} on {self._names[0]} and {facts.get(what)} on {self._names[rank]}"
            for rank, facts in sorted(self._facts_of.items())
            for what, fact in self._facts.items()
            if facts.get(what) != fact
        ]
        if different:
            raise self._told(
                WorkersDifferError(
                    f"the workers are not set up alike: {'; '.join(different)}. Install the same "
                    "versions everywhere, and give every worker the same number of devices."
                )
            )
        if not self._are_all_here():
            missing = tuple(r for r in range(1, len(self._names)) if r not in self._arrived)
            names = ", ".join(self._names[rank] for rank in missing)
            raise self._told(
                WorkerLostError(
                    f"after {self._seconds:g} s not arrived: {names}. Start every worker with the "
                    "same cluster, and check that they reach each other with `replicax doctor "
                    "--cluster`.",
                    missing,
                )
            )

    def _told(self, error: WorkerLostError | WorkersDifferError) -> Exception:
        """`error`, after all workers that have arrived have been told."""
        message: dict[str, Any] = {"type": type(error).__name__, "reason": str(error)}
        if isinstance(error, WorkerLostError):
            message["workers"] = error.workers
        for connection in self._arrived.values():
            with contextlib.suppress(ClusterPlatformError):  # it is told as well as can be
                connection.send(message)
        return error


def _are_facts(facts: object) -> TypeGuard[dict[str, str]]:
    return (
        isinstance(facts, dict)
        and len(facts) <= _MAX_FACTS
        and all(isinstance(fact, str) and len(fact) <= _MAX_FACT for fact in facts.values())
    )


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
        raise WorkerLostError(_reason(answer), _workers(answer))
    if answer.get("type") != "go":
        raise WorkersDifferError(_reason(answer))


def _reason(answer: Mapping[str, Any]) -> str:
    return str(answer.get("reason"))[:_MAX_REASON]


def _workers(answer: Mapping[str, Any]) -> tuple[int, ...]:
    ranks = answer.get("workers")
    return tuple(r for r in ranks if type(r) is int) if isinstance(ranks, list) else ()


def _connected(address: str, name: str, end: float, seconds: float) -> Connection:
    host = parse_address(address)
    while True:
        left = max(end - time.monotonic(), _RETRY_SECONDS)
        try:
            sock = socket.create_connection(
                (host.host, host.port), timeout=min(left, _ANSWER_SECONDS)
            )
            return Connection(sock, name)
        except OSError as error:
            if time.monotonic() > end:
                raise WorkerLostError(
                    f"{name} could not be reached within {seconds:g} s ({error}). Start every "
                    "worker, and check the addresses with `replicax doctor --cluster`.",
                    (0,),
                ) from error
            time.sleep(_RETRY_SECONDS)
