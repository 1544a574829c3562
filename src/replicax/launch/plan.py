"""What to start: the job, where its workers are, and the environment of each. Pure.

The environment variables are how the launcher speaks to a worker; a worker needs nothing of
this package to read them.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from replicax.backend import cpu_client, devices
from replicax.cluster.spec import ClusterSpec
from replicax.cluster.tf_config import VARIABLE as TF_CONFIG
from replicax.cluster.tf_config_format import TFConfig

ATTEMPT_VARIABLE = "REPLICAX_ATTEMPT"
"""Which start of the job this is: 1, and one more after each failure or preemption."""


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What to run, the same in each worker.

    Attributes:
        command: The program and its arguments.
        num_workers: How many workers there are.
        devices_per_worker: Virtual CPU devices for each; None leaves the devices as they are.
        log_dir: Where each worker has a file with its output; None for no files.
        grace_seconds: How long workers that were asked to leave may take.

    Raises:
        ValueError: If a number is too small or the command is empty.

    Example:
        >>> Job(("python", "train.py"), num_workers=2).grace_seconds
        20.0
    """

    command: tuple[str, ...]
    num_workers: int
    devices_per_worker: int | None = None
    log_dir: pathlib.Path | None = None
    grace_seconds: float = 20.0

    def __post_init__(self) -> None:
        if not self.command:
            raise ValueError("command is empty. Give the program and its arguments.")
        for name in ("num_workers", "devices_per_worker"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value!r}.")
        if not 0 <= self.grace_seconds < math.inf:
            raise ValueError(
                f"grace_seconds must be 0 or more, got {self.grace_seconds!r}; expected a finite "
                "number."
            )


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerPlan:
    """One worker to start.

    Attributes:
        worker_id: Its number in the cluster.
        command: The program and its arguments.
        environment: All of its environment.

    Example:
        >>> WorkerPlan(1, ("true",), {}).name
        'worker 1'
    """

    worker_id: int
    command: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"worker {self.worker_id}"


def plan_workers(
    job: Job, addresses: Sequence[str], *, attempt: int, environment: Mapping[str, str]
) -> list[WorkerPlan]:
    """All workers of an attempt.

    Args:
        job: What to run.
        addresses: Where each of them listens.
        attempt: Which start this is, from 1.
        environment: What the workers inherit.

    Example:
        >>> job = Job(("true",), num_workers=2, devices_per_worker=2)
        >>> _, plan = plan_workers(job, ["h:1", "h:2"], attempt=1, environment={})
        >>> plan.environment["TF_CONFIG"]
        '{"cluster": {"worker": ["h:1", "h:2"]}, "task": {"type": "worker", "index": 1}}'
        >>> plan.environment["JAX_NUM_CPU_DEVICES"]
        '2'
    """
    cluster = ClusterSpec({"worker": list(addresses)})
    common = {
        **environment,
        "PYTHONUNBUFFERED": "1",  # or a worker that is killed takes its last lines along
        **device_environment(job.devices_per_worker, environment),
        ATTEMPT_VARIABLE: str(attempt),
    }
    return [
        WorkerPlan(
            worker_id,
            job.command,
            common | {TF_CONFIG: TFConfig(cluster, "worker", worker_id).to_json()},
        )
        for worker_id in range(job.num_workers)
    ]


def device_environment(num_devices: int | None, environment: Mapping[str, Any]) -> dict[str, str]:
    """Variables that make a process use virtual CPU devices; none for None.

    Args:
        num_devices: How many.
        environment: What the process inherits; a higher number of threads in it is kept.

    Example:
        >>> device_environment(2, {})
        {'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': '2', 'NPROC': '6'}
        >>> device_environment(None, {})
        {}
    """
    if num_devices is None:
        return {}
    variables = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(num_devices)}
    if num_devices > 1:
        asked = str(environment.get(cpu_client.THREADS_VARIABLE, "")).strip()
        threads = devices.THREADS_PER_CPU_DEVICE * num_devices
        threads = max(threads, int(asked) if asked.isdigit() else 0)
        variables[cpu_client.THREADS_VARIABLE] = str(threads)
    return variables
