"""The half of a worker on Ray that is on its node: an actor that runs the worker's process.

The program is a process of its own, as on one machine, and not a method of the actor: it has its
own ``__main__``, signals and exit code, and may end itself as it likes. When the actor goes,
however it goes, its guard ends the process.
"""

from __future__ import annotations

import os
import pathlib
import select
import signal
import socket
import sys

from replicax.cluster.addresses import Address
from replicax.launch.guard import Guard
from replicax.launch.plan import WorkerPlan
from replicax.launch.spawn import WorkerProcess

PYTHON = "python of the node"
"""Stands in a command for the interpreter of the machine on which it runs."""

_FOREIGN = ("PYTHONBREAKPOINT",)  # what Ray sets for its own workers
_MAX_LAST_READS = 64  # a process outside the group may hold the pipe and write for ever


class WorkerActor:
    r"""Runs one worker on its node; each method may be called while `follow` waits.

    Args:
        host: The address of the node.

    Example:
        >>> actor = WorkerActor("127.0.0.1")
        >>> address = actor.reserve()
        >>> pid = actor.start(WorkerPlan(0, ("echo", "hello"), {}), "/")
        >>> said, code = actor.follow(10.0)
        >>> while code is None:
        ...     more, code = actor.follow(10.0)
        >>> said, code, actor.end()
        (b'hello\n', 0, 0)
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._guard = Guard()
        self._held: socket.socket | None = None
        self._worker: WorkerProcess | None = None

    def reserve(self) -> str:
        """An address for the worker; no other worker gets it before `start`."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._held = socket.socket(family)
        self._held.bind((self._host, 0))
        return str(Address(self._host, self._held.getsockname()[1]))

    def start(self, plan: WorkerPlan, folder: str) -> int:
        """Starts the program in `folder`; returns the id of its process.

        The variables of the plan are added to those of this node.

        Raises:
            FileNotFoundError: If there is no such folder here.
        """
        if not pathlib.Path(folder).is_dir():
            raise FileNotFoundError(
                f"there is no folder {folder!r} on the node {self._host}. The program must be at "
                "the same place on every node: use a shared file system, or put it into their "
                "image."
            )
        if self._held is not None:
            self._held.close()
        command = tuple(sys.executable if part == PYTHON else part for part in plan.command)
        environment = _own_environment() | dict(plan.environment)
        started = WorkerPlan(plan.worker_id, command, environment)
        self._worker = WorkerProcess(started, self._guard, folder=folder)
        return self._worker.pid

    def follow(self, seconds: float) -> tuple[bytes, int | None]:
        """What the worker has written since, and its return code once it has ended.

        Waits so long for either; then the answer is empty, which says that this actor is there.
        """
        worker = self._started()
        data = b""
        if select.select([worker], [], [], seconds)[0]:
            data = worker.read() or b""
        code = worker.poll()
        if code is None:
            return data, None
        worker.signal(signal.SIGKILL)  # what it started and left behind
        for _ in range(_MAX_LAST_READS):
            more = worker.read()
            if not more:
                break
            data += more
        return data, code

    def signal(self, number: int) -> None:
        """Sends a signal to the process and all that it started."""
        self._started().signal(number)

    def end(self) -> int | None:
        """Kills what is left of the worker; returns its return code, None without one."""
        code = None if self._worker is None else self._worker.end()
        self._guard.close()
        return code

    def _started(self) -> WorkerProcess:
        assert self._worker is not None
        return self._worker


def _own_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _FOREIGN}
