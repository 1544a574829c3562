"""Machines for tests: network namespaces with a LAN of their own, and what a host is called there.

Traffic stays inside of them. They need root and iproute2; without these a test is skipped, with
the words of the command that failed.
"""

import collections
import contextlib
import os
import pathlib
import subprocess
from collections.abc import Iterator

import pytest

LAN = "10.83.0"
HOST_NAME = "replicax-machine"


def ip(*arguments: str) -> subprocess.CompletedProcess:
    """Runs the command ``ip``."""
    return subprocess.run(
        ["ip", *arguments], capture_output=True, text=True, check=False, timeout=10
    )


@contextlib.contextmanager
def made(count: int) -> Iterator[list[str]]:
    """The names of one or two namespaces with a cable between them: 10.83.0.1 and 10.83.0.2."""
    names = [f"replicax-{os.getpid()}-{number}" for number in range(count)]
    ends = [f"rx{os.getpid()}a", f"rx{os.getpid()}b"]
    with contextlib.ExitStack() as stack:
        for name in names:
            added = ip("netns", "add", name)
            if added.returncode:
                pytest.skip(f"this machine has no network namespaces: {added.stderr.strip()}")
            stack.callback(ip, "netns", "del", name)
        commands = [["link", "add", ends[0], "type", "veth", "peer", "name", ends[1]]]
        for number, end in enumerate(ends):  # with one machine, the other end is there as well
            name = names[number % count]
            commands.append(["link", "set", end, "netns", name])
            if number < count:
                commands.append(["-n", name, "addr", "add", f"{LAN}.{number + 1}/24", "dev", end])
                commands.append(["-n", name, "link", "set", "lo", "up"])
            commands.append(["-n", name, "link", "set", end, "up"])
        for command in commands:
            done = ip(*command)
            if done.returncode:
                pytest.skip(f"'ip {' '.join(command)}' does not work: {done.stderr.strip()}")
        yield names


def hosts_file(folder: pathlib.Path, own_ip: str | None) -> pathlib.Path:
    """An ``/etc/hosts`` in which the name of the machine is `own_ip`, or is not at all."""
    path = folder / f"hosts-{own_ip}"
    own = f"{own_ip} {HOST_NAME}\n" if own_ip else ""
    path.write_text(f"127.0.0.1 localhost\n{own}")
    return path


def inside(name: str, hosts: pathlib.Path) -> list[str]:
    """What to put before a command that runs in a namespace, on a machine with these hosts."""
    run = f'mount --bind "$0" /etc/hosts && hostname {HOST_NAME} && exec "$@"'
    return [
        *("ip", "netns", "exec", name),
        *("unshare", "--uts", "--mount", "sh", "-c", run, str(hosts)),
    ]


def listeners(name: str) -> collections.Counter[str]:
    """How many ports something listens at in a namespace, by IP address."""
    shown = subprocess.run(
        ["ip", "netns", "exec", name, "ss", "-Hltnp"],
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    ).stdout
    hosts = [line.split()[3].rpartition(":")[0].strip("[]") for line in shown.splitlines()]
    return collections.Counter(host.removeprefix("::ffff:") for host in hosts)
