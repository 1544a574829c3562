"""How many devices and threads XLA's CPU client has, which it does not tell.

Observed behaviour of the client only; ``backend.devices`` and ``backend.runahead``
decide what follows from it.
"""

from __future__ import annotations

import os
import pathlib
import re

import jax

THREADS_VARIABLE = "NPROC"

# The client has two thread pools of equal size. Only this one can be seen from outside: the name
# of the other is too long for Linux, so its threads keep the name of the process.
_VISIBLE_POOL = "tf_XLAEigen"
_TASKS = pathlib.Path("/proc/self/task")
_DEVICE_COUNT_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def num_configured_cpu_devices() -> int:
    """How many CPU devices the CPU client has, or will have when it starts."""
    configured = jax.config.jax_num_cpu_devices  # pyright: ignore[reportAttributeAccessIssue]
    if configured > 0:
        return configured
    forced = _DEVICE_COUNT_FLAG.findall(os.environ.get("XLA_FLAGS", ""))
    return max(int(forced[-1]), 1) if forced else 1


def num_expected_client_threads(num_devices: int) -> int:
    """The size of a thread pool of a CPU client that would start now with `num_devices`."""
    asked = os.environ.get(THREADS_VARIABLE, "").strip()
    return max(int(asked) if asked.isdigit() else _num_usable_cores(), num_devices)


def num_client_threads(num_devices: int) -> int:
    """The size of a thread pool of the running CPU client; rather too low than too high.

    Counted where threads have names that can be read (Linux), otherwise concluded from the
    environment. The lower of the two counts: the environment may have changed after the start,
    and other libraries in the process may own threads of the same name.
    """
    expected = num_expected_client_threads(num_devices)
    try:
        names = [(task / "comm").read_text().strip() for task in _TASKS.iterdir()]
    except OSError:  # no procfs, or a thread that ended while it was looked at
        return expected
    counted = names.count(_VISIBLE_POOL)
    return min(counted, expected) if counted else expected


def _num_usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
