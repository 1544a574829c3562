"""The description of a cluster: jobs, and the address of each task.

It knows nothing of roles, devices or the network: `roles` says which descriptions
make sense for training, `addresses` what an address means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from replicax.cluster import bounds
from replicax.core.errors import ClusterError

Tasks: TypeAlias = "list[str] | tuple[str, ...] | Mapping[int, str]"

_EXAMPLE = 'ClusterSpec({"worker": ["host0:2222", "host1:2222"]})'


class ClusterSpec:
    """Which tasks a cluster has, by job, and where each one is.

    A job may list some of its tasks only, as a dict from task id to address.

    Args:
        cluster: A dict from job name to its tasks (a list of addresses, or a dict
            from task id to address), or another `ClusterSpec`.

    Raises:
        ClusterError: If `cluster` is not such a description.

    Example:
        >>> cluster = ClusterSpec({"chief": ["a:1"], "worker": ["b:1", "c:1"]})
        >>> cluster.jobs, cluster.num_tasks("worker")
        (['chief', 'worker'], 2)
        >>> cluster.task_address("worker", 1)
        'c:1'
        >>> ClusterSpec({"worker": {3: "d:1"}})
        ClusterSpec({'worker': {3: 'd:1'}})
    """

    def __init__(self, cluster: ClusterSpec | Mapping[str, Tasks]) -> None:
        if isinstance(cluster, ClusterSpec):
            cluster = cluster.as_dict()
        if not isinstance(cluster, Mapping):
            raise ClusterError(
                f"a cluster is a dict from job name to the addresses of its tasks, got {cluster!r}."
                f" Write {_EXAMPLE}."
            )
        self._jobs = {_job_name(name): dict(_tasks(name, t)) for name, t in cluster.items()}

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """Job name to addresses: a list, or a dict by task id where the ids have gaps."""
        return {
            name: list(tasks.values()) if _is_dense(tasks) else dict(tasks)
            for name, tasks in self._jobs.items()
        }

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs."""
        return list(self._jobs)

    def num_tasks(self, job_name: str) -> int:
        """How many tasks the job has.

        Args:
            job_name: The job.

        Returns:
            The number of tasks.

        Raises:
            ClusterError: If there is no such job.
        """
        return len(self._job(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """The ids of the job's tasks, in order.

        Args:
            job_name: The job.

        Returns:
            The ids.

        Raises:
            ClusterError: If there is no such job.
        """
        return list(self._job(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """The address of one task.

        Args:
            job_name: The job.
            task_index: The id of the task.

        Returns:
            The address, ``host:port``.

        Raises:
            ClusterError: If there is no such job, or no such task in it.
        """
        tasks = self._job(job_name)
        if task_index not in tasks:
            raise ClusterError(
                f"job {job_name!r} has no task {task_index!r}; its tasks are {list(tasks)}."
            )
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """The addresses of a job by task id; None where an id is not listed.

        Args:
            job_name: The job.

        Returns:
            One address, or None, for each id from 0 on.

        Raises:
            ClusterError: If there is no such job.
        """
        tasks = self._job(job_name)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def _job(self, job_name: str) -> dict[int, str]:
        if job_name not in self._jobs:
            raise ClusterError(
                f"the cluster has no job {job_name!r}; its jobs are {list(self._jobs)}."
            )
        return self._jobs[job_name]

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ClusterSpec):
            return self._jobs == other._jobs
        return NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset((name, tuple(tasks.items())) for name, tasks in self._jobs.items()))

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()!r})"


def _is_dense(tasks: Mapping[int, str]) -> bool:
    return list(tasks) == list(range(len(tasks)))


def _job_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ClusterError(
            f"a job name is a string such as 'worker', got {name!r}. Write {_EXAMPLE}."
        )
    return name


def _tasks(job: str, tasks: object) -> Iterator[tuple[int, str]]:
    """The tasks of one job by id, in the order of the ids."""
    if isinstance(tasks, Mapping):
        pairs = ((_task_id(job, index), address) for index, address in tasks.items())
        numbered = sorted(pairs, key=lambda pair: pair[0])
    elif isinstance(tasks, list | tuple):
        numbered = list(enumerate(tasks))
    else:
        raise ClusterError(
            f"the tasks of job {job!r} are a list of addresses, or a dict from task id to address,"
            f" got {tasks!r}. Write {_EXAMPLE}."
        )
    for index, address in numbered:
        if not isinstance(address, str):
            raise ClusterError(
                f"the address of task {index} of job {job!r} is {address!r}; expected a string "
                "such as 'host0:2222'."
            )
        yield index, address


def _task_id(job: str, index: object) -> int:
    # JSON has string keys only, so a dict that went through it has the ids as strings.
    number = bounds.whole_number(index) if isinstance(index, str) else index
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ClusterError(
            f"a task of job {job!r} has the id {index!r:.60}; expected 0 or a higher whole number."
        )
    if number >= bounds.MAX_TASKS:
        raise ClusterError(
            f"a task of job {job!r} has the id {number}; ids are below {bounds.MAX_TASKS}."
        )
    return number
