"""Several resolvers as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replicax.cluster.resolver import ClusterResolver
from replicax.cluster.spec import ClusterSpec, Tasks
from replicax.core.errors import ClusterError


class UnionResolver(ClusterResolver):
    """The clusters of several resolvers, merged.

    A job that two resolvers list in the same way is one job; one that they list
    differently has the tasks of both, the first resolver's first. Task, scheme,
    environment and accelerators are those of the first resolver that knows them.

    Args:
        *args: The resolvers.
        **kwargs: ``task_type``, ``task_id`` and ``rpc_layer``, which win over the resolvers'.

    Raises:
        ClusterError: If there is no resolver, or an argument is not one.

    Example:
        >>> from replicax.cluster.simple import SimpleClusterResolver
        >>> workers = SimpleClusterResolver({"worker": ["a:1"]}, task_type="worker", task_id=0)
        >>> servers = SimpleClusterResolver({"ps": ["b:1"]})
        >>> union = UnionResolver(workers, servers)
        >>> union.cluster_spec(), union.task_type
        (ClusterSpec({'worker': ['a:1'], 'ps': ['b:1']}), 'worker')
    """

    def __init__(self, *args: ClusterResolver, **kwargs: Any) -> None:
        self._rpc_layer = kwargs.pop("rpc_layer", None)
        self._task_type = kwargs.pop("task_type", None)
        self._task_id = kwargs.pop("task_id", None)
        if kwargs:
            raise ClusterError(
                f"UnionResolver got {sorted(kwargs)}; expected task_type, task_id or rpc_layer."
            )
        if not args:
            raise ClusterError("UnionResolver got no resolver. Pass at least one.")
        for resolver in args:
            if not isinstance(resolver, ClusterResolver):
                raise ClusterError(f"UnionResolver got {resolver!r}; expected cluster resolvers.")
        self._resolvers = args

    def cluster_spec(self) -> ClusterSpec:
        """The merged cluster.

        Returns:
            The jobs of all resolvers.

        Raises:
            ClusterError: If a job is given by task ids and two resolvers have the same id.
        """
        merged: dict[str, Tasks] = {}
        for resolver in self._resolvers:
            for job, tasks in resolver.cluster_spec().as_dict().items():
                merged[job] = _merge(job, merged[job], tasks) if job in merged else tasks
        return ClusterSpec(merged)

    def _find_task(self) -> tuple[str | None, int | None]:
        tasks = [(r.task_type, r.task_id) for r in self._resolvers]
        return next((task for task in tasks if task != (None, None)), (None, None))

    @property
    def rpc_layer(self) -> str | None:
        """The scheme of addresses: the one that was given, or that of the first to know one."""
        layers = (self._rpc_layer, *(resolver.rpc_layer for resolver in self._resolvers))
        return next((layer for layer in layers if layer is not None), None)

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer

    @property
    def environment(self) -> str | None:
        """That of the first resolver."""
        return self._resolvers[0].environment

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """The address of a task; without one, what the first resolver answers.

        Args:
            task_type: The job of the task.
            task_id: Its number in the job.
            rpc_layer: The scheme; the resolver's own if None.

        Returns:
            The address, with its scheme.

        Raises:
            ClusterError: If the cluster does not have the task.
        """
        if task_type is not None and task_id is not None:
            return super().master(task_type, task_id, rpc_layer)
        return self._resolvers[0].master(rpc_layer=rpc_layer)

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """What the first resolver answers.

        Args:
            task_type: The job of the task; this task's own if None.
            task_id: Its number in the job; this task's own if None.
            config_proto: Ignored.

        Returns:
            The counts, by kind.
        """
        return self._resolvers[0].num_accelerators(task_type, task_id, config_proto)


def _merge(job: str, first: Tasks, second: Tasks) -> Tasks:
    if first == second:
        return first
    if isinstance(first, list) and isinstance(second, list):
        return [*first, *second]
    one, other = _by_id(first), _by_id(second)
    shared = sorted(one.keys() & other.keys())
    if shared:
        raise ClusterError(
            f"two resolvers have the tasks {shared} of job {job!r}, at {[first, second]}. Give "
            "each task to one of them."
        )
    return one | other


def _by_id(tasks: Tasks) -> dict[int, str]:
    return dict(tasks) if isinstance(tasks, Mapping) else dict(enumerate(tasks))
