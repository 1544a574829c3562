"""Tiny programs for workers, and what tests ask about processes. No program imports JAX."""

import contextlib
import os
import pathlib
import sys
import textwrap
import time
from collections.abc import Callable

WAIT_SECONDS = 60.0

PRELUDE = """
import json, os, signal, socket, sys
config = json.loads(os.environ["TF_CONFIG"])
worker = config["task"]["index"]
attempt = int(os.environ["REPLICAX_ATTEMPT"])
address = config["cluster"]["worker"][worker]
"""


def program(source: str) -> tuple[str, ...]:
    """The command that runs `source` with the names of the prelude."""
    return (sys.executable, "-I", "-S", "-u", "-c", PRELUDE + textwrap.dedent(source))


def is_running(pid: int) -> bool:
    """Whether there is such a process, other than one that waits to be forgotten."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def start_of(pid: int) -> str | None:
    """When a process started, which tells it from a later one with the same number."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return stat.rpartition(")")[2].split()[19]


def wait_until(condition: Callable[[], bool]) -> bool:
    """Whether `condition` comes true in time."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def children(*, of: int | None = None) -> set[int]:
    """The processes that a process, or this one, has started and that still exist, in any state."""
    found, own = set(), os.getpid() if of is None else of
    for path in pathlib.Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == own:
                    found.add(int(path.name))
    return found


def command_of(pid: int) -> str:
    """The command of a process; empty if it has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def descriptors() -> set[str]:
    """What this process has open."""
    found = set()
    for path in pathlib.Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(f"{path.name} {path.readlink()}")
    return found
