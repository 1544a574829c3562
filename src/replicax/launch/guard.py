"""The launcher's side of the process that outlives it; see `guard_process`."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import sys
from typing import Self

SCRIPT = pathlib.Path(__file__).with_name("guard_process.py")
_END_SECONDS = 10.0


class Guard:
    """Sees to it that no worker outlives the launcher, also one that is killed.

    Example:
        >>> with Guard() as guard:
        ...     guard.is_alive
        True
    """

    def __init__(self) -> None:
        self._process = _start()

    @property
    def pid(self) -> int:
        """The process id of the guard."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it still watches."""
        return self._process.poll() is None

    def fileno(self) -> int:
        """The pipe into which a worker writes its group."""
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def revive(self) -> None:
        """Starts another guard if this one was killed; call it when no worker runs."""
        if not self.is_alive:
            self._close_pipe()
            self._process = _start()

    def forget(self, group: int) -> None:
        """Takes a group from the list, while its number cannot belong to another yet."""
        pipe = self._process.stdin
        assert pipe is not None
        if not pipe.closed:
            with contextlib.suppress(BrokenPipeError):  # it was killed, and its list with it
                pipe.write(b"-%d\n" % group)

    def close(self) -> None:
        """Ends the guard, and with it every group that was not taken from the list."""
        self._close_pipe()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # it was stopped
            self._process.kill()
            self._process.wait()

    def _close_pipe(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        bufsize=0,  # a line that stays in a buffer is lost with the launcher
        start_new_session=True,
    )
