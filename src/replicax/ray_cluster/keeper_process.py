"""Runs a command until its standard input ends, then kills all that descends from it.

A script that `local` runs by its path with a bare interpreter: ``keeper_process.py <folder>
<command>``. Standard input is a pipe whose other end is in the process that wants the command to
run, so it ends with that process, however it went. The processes of Ray leave the groups and
sessions that they were started in; but an orphan becomes a child of this process, which asked for
that.
"""

import contextlib
import ctypes
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys

_SET_CHILD_SUBREAPER = 36  # of prctl(2)
_LOOK_SECONDS = 0.5


def children() -> list[int]:
    """The processes whose parent this one is.

    Example:
        >>> children()
        []
    """
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == os.getpid():
                    found.append(int(entry.name))
    return found


def kill_descendants() -> None:
    """Kills children until there are none: those of a child that was killed become our own."""
    while pids := children():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def main(folder: str, command: list[str]) -> None:
    """Runs `command`, and leaves nothing of it; `folder` is deleted."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it has to outlive who started it
    failed = ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if failed:
        raise OSError(ctypes.get_errno(), "prctl: this needs Linux 3.4 or newer")
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, preexec_fn=_heed_signals, start_new_session=True
    )
    ended = False
    try:
        while not ended and not select.select([0], [], [], _LOOK_SECONDS)[0]:
            ended = process.poll() is not None
            for pid in children():
                if pid != process.pid:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)
    finally:
        kill_descendants()
        shutil.rmtree(folder, ignore_errors=True)


def _heed_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
