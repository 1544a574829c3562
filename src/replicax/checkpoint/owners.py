"""Which process writes something, in the name of what it writes, and whether it still does.

A name is there from the moment the file or folder is, so no record can be torn or late. A
process of this machine is looked up. One of another machine, which may share the folder, is
known only by the time of its last sign of life. Called by `parts`, `files` and `leftovers`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import re
import secrets
import socket
import stat
import tempfile
from pathlib import Path

PARTIAL = ".partial-"
SIGN = "begun"
"""The file in a partial folder whose time is the owner's last sign of life."""

STALE_SECONDS = 600.0
"""A process of another machine that gives no sign of life for so long has ended."""

BEAT_SECONDS = 20.0
"""How often an owner gives a sign of life."""

_NAME = re.compile(
    r"(?P<of>.+)\.partial-(?P<space>[0-9a-f]{12})-(?P<pid>\d+)-(?P<start>\d+)-(?P<token>[0-9a-f]{16})"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Owned:
    """What the name of a partial file or folder says.

    Attributes:
        of: The name that it gets when it is complete.
        space: Where the number of the process means something: a machine, since its last
            start, and there a container.
        pid: The number of the process.
        start: When the process began, in the system's own ticks; 0 if the system does not tell.
        token: What no other partial file or folder has.

    Example:
        >>> mine = Owned.by_this_process("ckpt-3")
        >>> Owned.parse(mine.name) == mine
        True
        >>> Owned.parse("ckpt-3.partial") is None
        True
    """

    of: str
    space: str
    pid: int
    start: int
    token: str

    @classmethod
    def by_this_process(cls, of: str) -> Owned:
        """A new name for what this process begins to write."""
        pid = os.getpid()
        _, start = _state_and_start(pid) or ("", 0)
        return cls(of, _space(), pid, start, secrets.token_hex(8))

    @classmethod
    def parse(cls, name: str) -> Owned | None:
        """What `name` says; None for a name that `by_this_process` did not make."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        return cls(
            found["of"], found["space"], int(found["pid"]), int(found["start"]), found["token"]
        )

    @property
    def name(self) -> str:
        """The name, of which `parse` is the inverse."""
        return f"{self.of}{PARTIAL}{self.space}-{self.pid}-{self.start}-{self.token}"

    def is_abandoned(self, folder: Path) -> bool:
        """Whether nobody writes this any more; `folder` is where it is.

        Not certain for a process of another machine: one that was stopped for long may go on.
        It then finds that its parts are gone, and fails.
        """
        if self.space == _space():
            return not self._is_running()
        path = folder / self.name
        signs = []
        for sign in (path, path / SIGN):
            with contextlib.suppress(OSError):
                signs.append(sign.lstat().st_mtime)
        return bool(signs) and _time_in(folder) - max(signs) > STALE_SECONDS

    def _is_running(self) -> bool:
        try:
            os.kill(self.pid, 0)  # asks only
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            pass  # it is another user's
        found = _state_and_start(self.pid)
        if found is None:
            return True
        state, start = found
        return state not in "ZX" and start == self.start


def _state_and_start(pid: int) -> tuple[str, int] | None:
    """How a process is doing, and when it began; None if the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return fields[0].decode("ascii"), int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


@functools.cache
def _space() -> str:
    known = [socket.gethostname()]
    with contextlib.suppress(OSError):
        known.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
    with contextlib.suppress(OSError):
        known.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:12]


def _time_in(folder: Path) -> float:
    """The time by the clock that dates the files of `folder`, which may be a server's."""
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime


def is_plain(path: Path) -> bool:
    """Whether there is a file or folder at `path` itself, no link and no device."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)
