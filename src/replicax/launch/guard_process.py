"""Kills the process groups of all workers once the launcher is gone, however it went.

A script that `guard` runs by its path with a bare interpreter. Its standard input is a pipe
whose other end is in the launcher alone (and in a worker for the moment of its start): a line
``+<group>`` adds a group, ``-<group>`` removes one, and the end of the pipe is the end of the
launcher. The parent-death signal of Linux would reach the workers only, not their children.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterable


def groups_left(lines: Iterable[bytes]) -> list[int]:
    """The groups that were added and not removed, when `lines` come to their end.

    Example:
        >>> groups_left([b"+20", b"+30", b"-20"])
        [30]
    """
    groups: dict[int, None] = {}
    for line in lines:
        group = int(line[1:])
        if line.startswith(b"+"):
            groups[group] = None
        else:
            groups.pop(group, None)
    return list(groups)


def main() -> None:
    """Waits for the end of standard input, then kills what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it has to outlive the launcher
    for group in groups_left(iter(sys.stdin.buffer.readline, b"")):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
