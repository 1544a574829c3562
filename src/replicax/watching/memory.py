"""How much memory is in use: of the devices where they say it, otherwise of the process."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import resource
import sys
from collections.abc import Mapping

from replicax.backend import devices

_STATM = pathlib.Path("/proc/self/statm")


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory that is in use.

    Attributes:
        of: Whose: the name of the device of this process that has most in use, or "process".
        now: Bytes in use.
        peak: The most that were in use since the process began.
    """

    of: str
    now: int
    peak: int


def memory_in_use() -> MemoryUse:
    """What is in use now. The devices of a CPU do not say it; for them the process counts.

    Example:
        >>> memory_in_use().of
        'process'
    """
    local = devices.local_devices()
    stats = {devices.device_name(device): device.memory_stats() or {} for device in local}
    return fullest(stats) or _process()


def fullest(stats: Mapping[str, Mapping[str, int]]) -> MemoryUse | None:
    """The device that has most in use; None if none of them says it.

    Args:
        stats: For each device what JAX has as its ``memory_stats()``.

    Example:
        >>> fullest({"GPU:0": {"bytes_in_use": 7}, "GPU:1": {"bytes_in_use": 9}, "CPU:0": {}})
        MemoryUse(of='GPU:1', now=9, peak=9)
    """
    found = [
        MemoryUse(name, one["bytes_in_use"], one.get("peak_bytes_in_use", one["bytes_in_use"]))
        for name, one in stats.items()
        if "bytes_in_use" in one
    ]
    return max(found, key=lambda use: use.now, default=None)


def _process() -> MemoryUse:
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    try:
        now = int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):  # a system that does not say it
        now = peak
    return MemoryUse("process", now, max(now, peak))
