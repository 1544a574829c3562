"""What each task of a training cluster is: who trains, in which order, and who is the chief.

Pure functions of a `ClusterSpec`. The jobs that take part in training are the chief
(also written ``master``) and the workers, the chief first; without a chief, worker 0
has its duties. ``ps`` and ``evaluator`` stand beside them.
"""

from __future__ import annotations

import dataclasses

from replicax.cluster.addresses import parse_address
from replicax.cluster.spec import ClusterSpec
from replicax.core.errors import ClusterError

CHIEF_JOBS = ("chief", "master")
TRAINING_JOBS = (*CHIEF_JOBS, "worker")
JOBS = (*TRAINING_JOBS, "ps", "evaluator")

_SINGLE_JOBS = (*CHIEF_JOBS, "evaluator")


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """One process of a cluster.

    Attributes:
        task_type: The name of its job.
        task_id: Its number in the job.
        address: Where it is.

    Example:
        >>> str(Task("worker", 1, "host1:2222"))
        'worker 1 (host1:2222)'
    """

    task_type: str
    task_id: int
    address: str

    def __str__(self) -> str:
        return f"{self.task_type} {self.task_id} ({self.address})"


def takes_part(task_type: str | None) -> bool:
    """Whether a task of this type trains, and so joins the other workers.

    Example:
        >>> takes_part("worker"), takes_part("ps"), takes_part(None)
        (True, False, True)
    """
    return task_type is None or task_type in TRAINING_JOBS


def ranked_tasks(cluster: ClusterSpec) -> list[Task]:
    """The tasks that train, in the order of their ranks: the chief, then the workers.

    Example:
        >>> [str(task) for task in ranked_tasks(ClusterSpec({"worker": ["b:1"], "chief": ["a:1"]}))]
        ['chief 0 (a:1)', 'worker 0 (b:1)']
    """
    return [task for job in TRAINING_JOBS for task in tasks_of(cluster, job)]


def tasks_of(cluster: ClusterSpec, job: str) -> list[Task]:
    """The tasks of one job; none if the cluster does not have it.

    Example:
        >>> tasks_of(ClusterSpec({"worker": ["a:1"]}), "ps")
        []
    """
    if job not in cluster.jobs:
        return []
    return [
        Task(job, index, cluster.task_address(job, index)) for index in cluster.task_indices(job)
    ]


def is_chief(cluster: ClusterSpec, task_type: str | None, task_id: int | None) -> bool:
    """Whether the task has the duties of a chief.

    The chief has, or worker 0 where none is listed; so has the evaluator, which works
    alone, and the only process of an empty cluster.

    Raises:
        ClusterError: If the cluster does not have the task.

    Example:
        >>> cluster = ClusterSpec({"worker": ["a:1", "b:1"]})
        >>> is_chief(cluster, "worker", 0), is_chief(cluster, "worker", 1)
        (True, False)
    """
    if not cluster:
        return True
    check_task(cluster, task_type, task_id)
    if task_type == "evaluator":
        return True
    ranked = ranked_tasks(cluster)
    return bool(ranked) and (ranked[0].task_type, ranked[0].task_id) == (task_type, task_id)


def worker_count(cluster: ClusterSpec, task_type: str | None) -> int:
    """How many tasks work together with a task of this type, itself included.

    Raises:
        ClusterError: If such a task does not train, nor evaluate.

    Example:
        >>> cluster = ClusterSpec({"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]})
        >>> worker_count(cluster, "worker"), worker_count(cluster, "evaluator")
        (3, 1)
    """
    if not cluster or task_type == "evaluator":
        return 1
    if task_type not in TRAINING_JOBS:
        raise ClusterError(
            f"a task of type {task_type!r} does not count workers; expected one of "
            f"{[*TRAINING_JOBS, 'evaluator']}."
        )
    return len(ranked_tasks(cluster))


def id_in_cluster(cluster: ClusterSpec, task_type: str | None, task_id: int | None) -> int:
    """The rank of a task among those that work together: the chief is 0, workers follow.

    Raises:
        ClusterError: If the cluster does not have the task, or it is a ``ps``, which has none.

    Example:
        >>> cluster = ClusterSpec({"chief": ["a:1"], "worker": ["b:1", "c:1"]})
        >>> id_in_cluster(cluster, "worker", 1)
        2
    """
    if not cluster:
        return 0
    check_task(cluster, task_type, task_id)
    if task_type == "evaluator":
        return 0
    ranks = {(t.task_type, t.task_id): rank for rank, t in enumerate(ranked_tasks(cluster))}
    if (task_type, task_id) not in ranks:
        raise ClusterError(
            f"a task of type {task_type!r} has no id among the workers: it takes no part in "
            f"training. Only {', '.join(TRAINING_JOBS)} and evaluator tasks have one."
        )
    return ranks[(task_type, task_id)]  # pyright: ignore[reportArgumentType]


# -- checks ------------------------------------------------------------------------------------


def check_cluster(cluster: ClusterSpec, source: str = "the cluster") -> None:
    """Refuses a description that cannot be trained on.

    Args:
        cluster: What to check; an empty one, a single process without peers, is right.
        source: What the message calls it.

    Raises:
        ClusterError: If a job is unknown or empty, nobody trains, there are two chiefs or two
            evaluators, or an address is no address or stands there twice.

    Example:
        >>> check_cluster(ClusterSpec({"worker": ["host0:2222", "host1:2222"]}))
    """
    for job in cluster.jobs:
        _check_job(cluster, job, source)
    if cluster and not ranked_tasks(cluster):
        raise ClusterError(
            f"{source} has only the jobs {cluster.jobs}: nobody trains. Add 'worker'."
        )
    chiefs = [job for job in CHIEF_JOBS if job in cluster.jobs]
    if len(chiefs) > 1:
        raise ClusterError(
            f"{source} has both 'chief' ({cluster.job_tasks('chief')[0]}) and 'master' "
            f"({cluster.job_tasks('master')[0]}), which are two names for one role. Keep 'chief' "
            "and list the other task under 'worker'."
        )
    _check_addresses(cluster, source)


def _check_job(cluster: ClusterSpec, job: str, source: str) -> None:
    if job not in JOBS:
        raise ClusterError(f"{source} has the job {job!r}; expected one of {', '.join(JOBS)}.")
    count = cluster.num_tasks(job)
    if count == 0:
        raise ClusterError(
            f"{source} has the job {job!r} with no tasks. List its addresses, or leave it out."
        )
    if job in _SINGLE_JOBS and count > 1:
        others = "" if job == "evaluator" else " List the others under 'worker'."
        raise ClusterError(
            f"{source} has {count} tasks in the job {job!r}: {cluster.as_dict()[job]}; there is at "
            f"most one.{others}"
        )


def _check_addresses(cluster: ClusterSpec, source: str) -> None:
    owners: dict[tuple[str, int], Task] = {}
    for task in (task for job in cluster.jobs for task in tasks_of(cluster, job)):
        try:
            address = parse_address(task.address)
        except ClusterError as error:
            raise ClusterError(f"{source}: {task.task_type} {task.task_id}: {error}") from error
        owner = owners.setdefault((address.host.lower(), address.port), task)
        if owner is not task:
            raise ClusterError(
                f"{source} has the address {task.address!r} twice, for {owner.task_type} "
                f"{owner.task_id} and for {task.task_type} {task.task_id}. Give each task a port "
                "of its own."
            )


def check_task(
    cluster: ClusterSpec,
    task_type: str | None,
    task_id: int | None,
    source: str = "the cluster",
) -> None:
    """Refuses a task that the cluster does not have.

    An evaluator need not be listed: it stands outside the training cluster.

    Raises:
        ClusterError: If the type is not a job of the cluster, or the id not one of its tasks.

    Example:
        >>> check_task(ClusterSpec({"worker": ["host0:2222"]}), "worker", 0)
    """
    if task_type not in cluster.jobs:
        if task_type == "evaluator" and task_id == 0:
            return
        raise ClusterError(
            f"{source} has no job {task_type!r}, which is the type of this task; its jobs are "
            f"{cluster.jobs}. Use one of them, or list the task's address under {task_type!r}."
        )
    indices = cluster.task_indices(str(task_type))
    if task_id not in indices:
        raise ClusterError(
            f"{source} has no {task_type} {task_id!r}, which is the index of this task; the "
            f"indices of {task_type!r} are {_shown(indices)}. Use one of them, or list one more "
            "address."
        )


def _shown(indices: list[int]) -> str:
    if len(indices) > 2 and indices == list(range(len(indices))):
        return f"0 to {indices[-1]}"
    return ", ".join(map(str, indices))
