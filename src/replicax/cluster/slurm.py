"""The resolver for processes that ``srun`` started.

JAX knows which process of the job step this is; where all the others are comes from
Slurm's node list.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from typing import Any

from replicax.cluster import bounds, environment, hostlist
from replicax.cluster.addresses import task_addresses
from replicax.cluster.resolver import ClusterResolver
from replicax.cluster.spec import ClusterSpec
from replicax.core.errors import ClusterError, ClusterPlatformError
from replicax.jax_internals.processes import DetectedProcess, has_started, slurm_process

_ADVICE = "Start the program with srun, inside sbatch or salloc."
_STEP_VARIABLES = (
    *("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID"),
)
_NUMBERS = ("SLURM_NTASKS", "SLURM_PROCID")
_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


class SlurmClusterResolver(ClusterResolver):
    """The tasks of a Slurm job step, and which one of them this is.

    Ranks are given to jobs in the order of their names, as documented: with
    ``{"ps": 1, "worker": 2}`` Slurm's task 0 is the ps. Hosts are taken in Slurm's
    own order, block or cyclic.

    Args:
        jobs: Job name to number of tasks; all are workers if None.
        port_base: The port of the first task of a host; the next ones count up. Two jobs
            that share a host need different ones.
        gpus_per_node: GPUs of each node; counted if None.
        gpus_per_task: GPUs of each task; an equal share of the node's if None.
        tasks_per_node: Tasks on each node, one number or host to number; asked of Slurm if None.
        auto_set_gpu: Whether `cluster_spec` sets ``CUDA_VISIBLE_DEVICES`` to this task's share,
            if Slurm has not done so and JAX has not started.
        rpc_layer: The scheme of `master`.

    Raises:
        ClusterPlatformError: If the process is not in a Slurm job step.
        ClusterError: If the numbers do not fit what Slurm gave.

    Example:
        >>> import os
        >>> step = {"JOB_ID": "7", "STEP_NODELIST": "n[1-2]", "STEP_TASKS_PER_NODE": "1(x2)"}
        >>> step |= {"NTASKS": "2", "PROCID": "1", "LOCALID": "0"}
        >>> step = {f"SLURM_{name}": value for name, value in step.items()}
        >>> os.environ.update(step)
        >>> resolver = SlurmClusterResolver()
        >>> resolver.cluster_spec()
        ClusterSpec({'worker': ['n1:8888', 'n2:8888']})
        >>> resolver.get_task_info()
        ('worker', 1)
        >>> for name in step:
        ...     del os.environ[name]
    """

    def __init__(
        self,
        jobs: Mapping[str, int] | None = None,
        port_base: int = 8888,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        tasks_per_node: int | Mapping[str, int] | None = None,
        auto_set_gpu: bool = True,
        rpc_layer: str | None = "grpc",
    ) -> None:
        process = _process()
        tasks_per_host = _tasks_per_host(tasks_per_node)
        self._hosts = _task_hosts(tasks_per_host)
        self._jobs = {"worker": process.num_processes} if jobs is None else dict(jobs)
        asked = sum(self._jobs.values())
        if asked != len(self._hosts):
            raise ClusterError(
                f"the jobs {self._jobs} have {asked} tasks and Slurm has {len(self._hosts)}: "
                f"{tasks_per_host}. Correct jobs, or start as many tasks: srun --ntasks={asked}."
            )
        self._rank = process.process_id
        if self._rank >= asked:
            raise ClusterError(f"this is Slurm's task {self._rank}, and there are {asked} tasks.")
        self._check_own_host()
        self._addresses = task_addresses(self._hosts, port_base)
        self._gpus_per_task = _gpus_per_task(
            gpus_per_node, gpus_per_task, max(tasks_per_host.values())
        )
        self._auto_set_gpu = auto_set_gpu
        self._rpc_layer = rpc_layer

    def _check_own_host(self) -> None:
        host = os.environ.get("SLURMD_NODENAME", "")
        expected = self._hosts[self._rank]
        if host and host != expected:
            raise ClusterError(
                f"task {self._rank} of the step runs on {host!r}, but in the order of the node "
                f"list it would be on {expected!r}. Start the step with srun --distribution=block."
            )

    def cluster_spec(self) -> ClusterSpec:
        """The tasks of the step by job; also gives this task its GPUs (see `auto_set_gpu`)."""
        if self._auto_set_gpu:
            self._set_visible_gpus()
        spec, start = {}, 0
        for job, count in sorted(self._jobs.items()):
            spec[job] = self._addresses[start : start + count]
            start += count
        return ClusterSpec(spec)

    def get_task_info(self) -> tuple[str | None, int | None]:
        """Type and id of this task."""
        return self.task_type, self.task_id

    def _find_task(self) -> tuple[str | None, int | None]:
        task_id = self._rank
        for job, count in sorted(self._jobs.items()):
            if task_id < count:
                return job, task_id
            task_id -= count
        return None, None

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """The GPUs of each task, as they were divided; empty if there are none.

        Args:
            task_type: Ignored: all tasks have as many.
            task_id: Ignored.
            config_proto: Ignored.

        Returns:
            The counts, by kind.
        """
        return {"GPU": self._gpus_per_task} if self._gpus_per_task else {}

    def _set_visible_gpus(self) -> None:
        share = self._gpus_per_task
        if share == 0 or has_started():
            return
        visible = _visible_gpus()
        ids = [str(i) for i in range(_num_gpu_files())] if visible is None else visible
        local = self._hosts[: self._rank].count(self._hosts[self._rank])
        mine = ids[local * share : (local + 1) * share]
        if len(ids) > share and len(mine) == share:  # else Slurm has given this task its own
            os.environ[_VISIBLE_GPUS] = ",".join(mine)


def is_present() -> bool:
    """Whether this process was started by ``srun``.

    Example:
        >>> is_present()
        False
    """
    return not environment.missing(*_STEP_VARIABLES)


def task_hosts(num_tasks: int) -> list[str] | None:
    """The host of each of `num_tasks` tasks of the step, or else of the allocation.

    Those of the allocation when neither has as many tasks; None outside Slurm. A step may be
    that of a launcher's own helpers, one on each node.

    Example:
        >>> task_hosts(2)
    """
    found = None
    for nodes, counts in (
        ("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"),
        ("SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE"),
    ):
        if not environment.missing(nodes, counts):
            hosts = hostlist.expand_hosts(os.environ[nodes])
            per_node = hostlist.expand_tasks_per_node(os.environ[counts])
            found = _task_hosts(hostlist.tasks_by_host(hosts, per_node))
            if len(found) == num_tasks:
                break
    return found


def _process() -> DetectedProcess:
    missing = environment.missing(*_STEP_VARIABLES)
    if missing:
        raise ClusterPlatformError(
            f"this process is not in a Slurm job step: {', '.join(missing)} not set. {_ADVICE}"
        )
    for name in _NUMBERS:
        environment.whole_number(name, _ADVICE)
    process = slurm_process()
    if process is None:
        raise ClusterPlatformError(f"JAX does not see a Slurm job step here. {_ADVICE}")
    return process


def _tasks_per_host(tasks_per_node: int | Mapping[str, int] | None) -> dict[str, int]:
    if isinstance(tasks_per_node, Mapping):
        return dict(tasks_per_node)
    hosts = hostlist.expand_hosts(environment.required("SLURM_STEP_NODELIST", _ADVICE))
    if tasks_per_node is not None:
        return dict.fromkeys(hosts, int(tasks_per_node))
    counts = environment.required("SLURM_STEP_TASKS_PER_NODE", _ADVICE)
    return hostlist.tasks_by_host(hosts, hostlist.expand_tasks_per_node(counts))


def _task_hosts(tasks_per_host: Mapping[str, int]) -> list[str]:
    if os.environ.get("SLURM_DISTRIBUTION", "").startswith("cyclic"):
        return hostlist.cyclic_hosts(tasks_per_host)
    return hostlist.block_hosts(tasks_per_host)


def _gpus_per_task(per_node: int | None, per_task: int | None, max_tasks: int) -> int:
    visible = _visible_gpus()
    if per_node is None:
        per_node = bounds.whole_number(os.environ.get("SLURM_GPUS_ON_NODE"))
        if per_node is None:
            per_node = _num_gpu_files() if visible is None else len(visible)
    if per_task is None:
        is_own_share = visible is not None and len(visible) < per_node
        return len(visible or ()) if is_own_share else per_node // max_tasks
    if max_tasks * per_task > per_node:
        raise ClusterError(
            f"{max_tasks} tasks of a node with {per_task} GPUs each need {max_tasks * per_task}, "
            f"and the node has {per_node}. Lower gpus_per_task, or start fewer tasks on a node."
        )
    return per_task


def _visible_gpus() -> list[str] | None:
    value = os.environ.get(_VISIBLE_GPUS)
    return None if value is None else [gpu for gpu in value.split(",") if gpu]


def _num_gpu_files() -> int:
    return len(glob.glob("/dev/nvidia[0-9]*"))
