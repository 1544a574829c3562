"""Where the workers of a job run: what a run needs of a machine, or of several.

`this_machine` starts them as processes of this machine, `ray_place` by Ray on the nodes of a
cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from replicax.launch.plan import WorkerPlan


class StartedWorker(Protocol):
    """A worker that was started.

    Example:
        >>> from replicax.launch.spawn import WorkerProcess
        >>> issubclass(WorkerProcess, object)  # one of this machine
        True
    """

    @property
    def worker_id(self) -> int:
        """Its number in the cluster."""
        ...

    @property
    def pid(self) -> int:
        """The id of its process, on the machine that has it."""
        ...

    def fileno(self) -> int:
        """Can be read from when it has written something, or has closed its output."""
        ...

    def read(self) -> bytes | None:
        """What it has written since; empty at the end, None if there is nothing yet."""
        ...

    def poll(self) -> int | None:
        """Its return code, as `subprocess` has it; None while it runs."""
        ...

    def signal(self, number: int) -> None:
        """Sends a signal to the process and all that it started."""
        ...

    def end(self) -> int:
        """Kills what is left of it and gives everything back; returns its return code."""
        ...


class Place(Protocol):
    """Where workers run.

    Example:
        >>> from replicax.launch.this_machine import ThisMachine
        >>> place: Place = ThisMachine()
        >>> place.close()
    """

    @property
    def environment(self) -> Mapping[str, str]:
        """What workers get of the variables of the launcher."""
        ...

    def reserve(self, num_workers: int) -> tuple[str, ...] | None:
        """Addresses for the workers of the next attempt; None if the wait was interrupted.

        Raises:
            ClusterPlatformError: If there is no place for them.
        """
        ...

    def start(self, plan: WorkerPlan) -> StartedWorker:
        """Starts the worker with this id."""
        ...

    def close(self) -> None:
        """Gives everything back; called when no worker runs."""
        ...
