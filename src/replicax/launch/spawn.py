"""One worker as a process: started in a group of its own, watched, and ended with its group."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

from replicax.launch.guard import Guard
from replicax.launch.plan import WorkerPlan

SCRIPT = pathlib.Path(__file__).with_name("enter_group.py")
_CHUNK = 65536


class WorkerProcess:
    """A running worker.

    Its output and its errors come through one pipe, in the order in which they were written.

    Args:
        plan: What to start.
        guard: Who ends it if the launcher is gone.
        folder: Where it runs; where this process does if None.

    Example:
        >>> with Guard() as guard:
        ...     worker = WorkerProcess(WorkerPlan(0, ("true",), dict(os.environ)), guard)
        ...     while worker.poll() is None:
        ...         pass
        ...     worker.end()
        0
    """

    def __init__(self, plan: WorkerPlan, guard: Guard, *, folder: str | None = None) -> None:
        self.plan = plan
        self._guard = guard
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SCRIPT), str(guard.fileno()), *plan.command],
            env=plan.environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            pass_fds=(guard.fileno(),),
            start_new_session=True,
        )
        os.set_blocking(self.fileno(), False)

    @property
    def pid(self) -> int:
        """The id of the process and of its group."""
        return self._process.pid

    @property
    def worker_id(self) -> int:
        """Its number in the cluster."""
        return self.plan.worker_id

    def fileno(self) -> int:
        """The end of the pipe that its output comes from."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def read(self) -> bytes | None:
        """What it has written since; empty at the end, None if there is nothing yet."""
        assert self._process.stdout is not None
        return self._process.stdout.read(_CHUNK)

    def poll(self) -> int | None:
        """Its return code if it has ended; it is left as it is, so that its id stays its own."""
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def signal(self, number: int) -> None:
        """Sends a signal to the process and all that it started."""
        if self._process.returncode is None:  # else the id may be another's
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def end(self) -> int:
        """Kills what is left of its group and gives everything back; returns its return code."""
        if self._process.returncode is None:
            self.signal(signal.SIGKILL)
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            self._guard.forget(self.pid)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self._process.wait()
