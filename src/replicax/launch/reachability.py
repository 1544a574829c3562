"""Whether the tasks of a cluster can reach each other from this machine, found out before a start.

Each check is bounded in time, and all run at once. A host that refuses a connection is there:
before a start nothing listens.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import errno
import socket
import threading
from collections.abc import Sequence
from typing import Any

from replicax.cluster import addresses
from replicax.cluster.addresses import Address, parse_address
from replicax.cluster.roles import Task
from replicax.core.errors import ClusterError


@dataclasses.dataclass(frozen=True, slots=True)
class AddressReport:
    """What was found out about one address.

    Attributes:
        task: The task that has it, such as ``worker 1``.
        address: As the cluster lists it.
        resolved: What its host means on this machine.
        state: What a connection to it found; empty if none was tried.
        problem: What is wrong and what to do; empty if nothing is.

    Example:
        >>> AddressReport("worker 0", "h:1", ("10.0.0.1",), "listening").is_good
        True
    """

    task: str
    address: str
    resolved: tuple[str, ...] = ()
    state: str = ""
    problem: str = ""

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problem

    def to_json(self) -> dict[str, Any]:
        """A form that JSON can carry."""
        return dataclasses.asdict(self)


def check_addresses(
    tasks: Sequence[Task], own: tuple[str | None, int | None], *, connect: bool, seconds: float
) -> list[AddressReport]:
    """One report for each task, in order.

    Args:
        tasks: The tasks of the cluster.
        own: Type and id of this task.
        connect: Whether to try the addresses, and not only what their hosts mean.
        seconds: The longest time for a check.

    Example:
        >>> (report,) = check_addresses(
        ...     [Task("worker", 0, "127.0.0.1:2222")], ("worker", 0), connect=False, seconds=5.0
        ... )
        >>> report.resolved
        ('127.0.0.1',)
    """
    hosts = {host for task in tasks if (host := _host_of(task)) is not None}
    listed = [task.address for task in tasks]
    checks = [
        _Check(
            task,
            # Of its own address: at which of its interfaces this machine would listen.
            cluster=listed if (task.task_type, task.task_id) == own else (),
            is_among_several=len(hosts) > 1,
            connect=connect,
            seconds=seconds,
        )
        for task in tasks
    ]
    return [check.result() for check in checks]


def _host_of(task: Task) -> str | None:
    """The host of a task; the ways to write this machine itself are one host."""
    try:
        host = parse_address(task.address).host.lower()
    except ClusterError:
        return None
    return "localhost" if host == "::1" or host.startswith("127.") else host


class _Check:
    """One address, looked at in a thread: asking for a name cannot be bounded otherwise."""

    def __init__(
        self,
        task: Task,
        *,
        cluster: Sequence[str],
        is_among_several: bool,
        connect: bool,
        seconds: float,
    ) -> None:
        self._task = task
        self._cluster = cluster
        self._is_among_several = is_among_several
        self._connect = connect
        self._seconds = seconds
        self._future: concurrent.futures.Future[AddressReport] = concurrent.futures.Future()
        # A daemon, and no pool: a name server that does not answer must not hold up the exit.
        threading.Thread(target=self._run, daemon=True, name=f"check {task.address}").start()

    def result(self) -> AddressReport:
        try:
            # Twice the time: once for the name, once for the connection.
            return self._future.result(2 * self._seconds)
        except concurrent.futures.TimeoutError:
            return self._report(
                problem=f"the host of {self._task.address!r} was not resolved within "
                f"{2 * self._seconds:g} s. Check the name server, or use an IP address."
            )

    def _run(self) -> None:
        try:
            self._future.set_result(self._look())
        except BaseException as error:
            self._future.set_exception(error)

    def _look(self) -> AddressReport:
        try:
            address = parse_address(self._task.address)
            resolved = addresses.resolve_host(address.host)
            loopback = addresses.is_loopback(address.host)
        except ClusterError as error:
            return self._report(problem=str(error))
        if loopback and self._is_among_several:
            return self._report(
                resolved,
                problem=f"{address.host!r} resolves to {resolved[0]}, which only this machine can "
                "reach, in a cluster of several hosts; its workers would advertise it to the "
                "others. Use the address of a network interface, or correct /etc/hosts.",
            )
        if not self._connect:
            return self._report(resolved)
        if not self._cluster:
            state, problem = _probe_other(Address(resolved[0], address.port), self._seconds)
            return self._report(resolved, state, problem)
        try:
            ip = addresses.own_ip(self._cluster, self._cluster.index(self._task.address))
        except ClusterError as error:
            return self._report(resolved, problem=str(error))
        return self._report(resolved, *_probe_own(Address(ip, address.port)))

    def _report(
        self, resolved: tuple[str, ...] = (), state: str = "", problem: str = ""
    ) -> AddressReport:
        name = f"{self._task.task_type} {self._task.task_id}"
        return AddressReport(name, self._task.address, resolved, state, problem)


def _probe_own(address: Address) -> tuple[str, str]:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family) as listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address.host, address.port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return "in use: by this task, if it runs already", ""
            return "", (
                f"this task cannot listen at {address}: {error.strerror}. Its address in the "
                "cluster must be one of this machine, with a port that it may use."
            )
    return "free for this task", ""


def _probe_other(address: Address, seconds: float) -> tuple[str, str]:
    try:
        socket.create_connection((address.host, address.port), timeout=seconds).close()
    except ConnectionRefusedError:
        return "host answers, nothing listens yet", ""
    except OSError as error:
        why = error.strerror or str(error)
        return "", (
            f"{address} cannot be reached within {seconds:g} s ({why}). Is the machine up, and do "
            "firewalls let this port through?"
        )
    return "listening", ""
