"""Addresses of tasks: how they are written, and what this machine makes of them.

Parsing is pure. Resolving asks the machine's own resolver, and a free port is
found on the given interface; nothing here connects to another task.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import ipaddress
import re
import socket
from collections.abc import Sequence

from replicax.cluster import bounds
from replicax.core.errors import ClusterError

MAX_PORT = 65535

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_WRITE = "Write host:port, such as 'host0:2222', '10.0.0.1:2222' or '[fd00::1]:2222'."


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """Where a task listens.

    Attributes:
        host: A name or an IP address; IPv6 without brackets.
        port: From 1 to 65535.

    Example:
        >>> Address("fd00::1", 2222)
        Address(host='fd00::1', port=2222)
        >>> str(Address("fd00::1", 2222))
        '[fd00::1]:2222'
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """The host and the port of ``host:port``; IPv6 is written in brackets.

    Raises:
        ClusterError: If `text` is not such an address.

    Example:
        >>> parse_address("host0:2222")
        Address(host='host0', port=2222)
        >>> parse_address("[::1]:2222").host
        '::1'
    """
    if not isinstance(text, str):
        raise ClusterError(f"an address is a string, got {text!r}. {_WRITE}")
    if "://" in text:
        raise ClusterError(f"the address {text!r} has a scheme. Leave it out. {_WRITE}")
    host, colon, port = text.rpartition(":")
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        colon, port = rest[:1] if bracket else "", rest[1:]
    elif ":" in host or _is_ip(text, version=6):
        raise ClusterError(f"the IPv6 address {text!r} has no brackets. {_WRITE}")
    if colon != ":":
        raise ClusterError(f"the address {text!r} has no port. {_WRITE}")
    number = bounds.whole_number(port)
    if number is None or not 0 < number <= MAX_PORT:
        raise ClusterError(
            f"the port of the address {text!r} is {port!r}; expected a number from 1 to {MAX_PORT}."
        )
    _check_host(text, host)
    return Address(host, number)


def _check_host(text: str, host: str) -> None:
    if text.startswith("["):
        if not _is_ip(host, version=6):
            raise ClusterError(f"the address {text!r} has no IPv6 address in its brackets.")
    elif not _NAME.fullmatch(host):
        shown = f"the host {host!r}, which is no host name" if host else "no host"
        raise ClusterError(f"the address {text!r} has {shown}. {_WRITE}")


def _is_ip(host: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(host).version == version
    except ValueError:
        return False


def task_addresses(hosts: Sequence[str], port_base: int) -> list[str]:
    """One address for each task; the tasks of one host get consecutive ports.

    Args:
        hosts: The host of each task.
        port_base: The port of the first task of a host.

    Raises:
        ClusterError: If a port would not exist, or a host is neither a name nor an IP address.

    Example:
        >>> task_addresses(["n1", "n1", "n2"], 8888)
        ['n1:8888', 'n1:8889', 'n2:8888']
    """
    counts: collections.Counter[str] = collections.Counter()
    addresses = []
    for host in hosts:
        if not (_NAME.fullmatch(host) or _is_ip(host, version=6)):
            raise ClusterError(f"{host!r} is neither the name of a host nor an IP address.")
        port = port_base + counts[host]
        if isinstance(port_base, bool) or not 0 < port <= MAX_PORT:
            raise ClusterError(
                f"task {counts[host]} of host {host!r} would get port {port!r}; expected 1 to "
                f"{MAX_PORT}. Choose another port than {port_base!r} to start from."
            )
        addresses.append(str(Address(host, port)))
        counts[host] += 1
    return addresses


def resolve_host(host: str) -> tuple[str, ...]:
    """The IP addresses that `host` means on this machine, in the order of preference.

    Raises:
        ClusterError: If the name is not known here.

    Example:
        >>> resolve_host("127.0.0.1")
        ('127.0.0.1',)
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ClusterError(
            f"the host name {host!r} does not resolve on this machine ({error}). Use an IP "
            "address, or a name that every machine of the cluster knows."
        ) from error
    return tuple(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


def is_loopback(host: str) -> bool:
    """Whether `host` means this machine only: the first address it resolves to is loopback.

    A task whose name is loopback cannot be reached from another machine.

    Raises:
        ClusterError: If the name is not known here.

    Example:
        >>> is_loopback("localhost"), is_loopback("10.0.0.1")
        (True, False)
    """
    return _is_loopback_ip(resolve_host(host)[0])


def own_ip(addresses: Sequence[str], rank: int) -> str:
    """The IP address of this machine at which its task of a cluster listens.

    Args:
        addresses: Of all tasks.
        rank: Which of them is on this machine.

    Raises:
        ClusterError: If the host of the task is not this machine, stands for all of its
            interfaces, or cannot be reached by the tasks of other machines.

    Example:
        >>> own_ip(["127.0.0.1:2222", "127.0.0.1:2223"], 1)
        '127.0.0.1'
    """
    host = parse_address(addresses[rank]).host
    found = resolve_host(host)
    reachable = [ip for ip in found if not _is_loopback_ip(ip)]
    if not reachable and (other := _first_elsewhere(addresses)) is not None:
        raise ClusterError(
            f"the host of this task, {host!r}, resolves to {found[0]} here, which only this "
            f"machine can reach, and the cluster has a task at {other!r}. Use the address of a "
            "network interface, or correct /etc/hosts."
        )
    if any(ipaddress.ip_address(ip.partition("%")[0]).is_unspecified for ip in found):
        raise ClusterError(
            f"the host of this task, {host!r}, means every interface of a machine: others cannot "
            "connect to it, and a listener would be open to all networks. Give the address of one "
            "interface."
        )
    for ip in reachable or found:
        with contextlib.suppress(ClusterError):
            free_port(ip)
            return ip
    raise ClusterError(
        f"this task cannot listen at {addresses[rank]}: {host!r} resolves to {', '.join(found)} "
        "here, which is no address of this machine. Correct the cluster, or the type and index of "
        "this task."
    )


def _first_elsewhere(addresses: Sequence[str]) -> str | None:
    """The first address that is not on this machine for certain; None if there is none."""
    for address in addresses:
        try:
            if not all(map(_is_loopback_ip, resolve_host(parse_address(address).host))):
                return address
        except ClusterError:
            return address
    return None


def _is_loopback_ip(ip: str) -> bool:
    parsed = ipaddress.ip_address(ip.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """`count` different ports of `host` that nothing listens on now.

    Another process may take one before it is used: use them soon.

    Raises:
        ClusterError: If `host` is not an interface of this machine.

    Example:
        >>> len(set(free_ports(3)))
        3
    """
    with contextlib.ExitStack() as held:  # all at once, or the same port would come again
        ports = []
        for _ in range(count):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = held.enter_context(socket.socket(family))
            try:
                listener.bind((host, 0))
            except OSError as error:
                raise ClusterError(
                    f"this machine has no interface {host!r} to listen on ({error})."
                ) from error
            ports.append(int(listener.getsockname()[1]))
        return ports


def free_port(host: str = "127.0.0.1") -> int:
    """One port of `host` that nothing listens on now.

    Raises:
        ClusterError: If `host` is not an interface of this machine.

    Example:
        >>> 0 < free_port() <= MAX_PORT
        True
    """
    return free_ports(1, host)[0]
