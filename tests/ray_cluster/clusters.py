"""What tests ask about a cluster of Ray on this machine."""

import os
import pathlib
from collections.abc import Iterable

from tests.launch.programs import children


def descendants(of: int) -> set[int]:
    """All processes that a process has started, and those that these have started."""
    found: set[int] = set()
    new = {of}
    while new:
        new = {child for pid in new for child in children(of=pid)} - found
        found |= new
    return found


def listeners(pids: Iterable[int]) -> dict[str, int]:
    """The addresses at which processes listen for TCP, as the kernel writes them."""
    inodes = {}
    for pid in pids:
        try:
            for path in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                target = os.readlink(path)
                if target.startswith("socket:["):
                    inodes[target[8:-1]] = pid
        except OSError:
            continue
    found = {}
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found[fields[1]] = inodes[fields[9]]
    return found


def is_loopback(address: str) -> bool:
    """Whether the kernel's way to write an address means this machine only."""
    host = address.partition(":")[0]
    return host.endswith("0100007F") or host == "0" * 24 + "01000000"
