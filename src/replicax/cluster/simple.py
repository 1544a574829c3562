"""A resolver that is told everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replicax.cluster.resolver import ClusterResolver, with_scheme
from replicax.cluster.spec import ClusterSpec, Tasks


class SimpleClusterResolver(ClusterResolver):
    """Answers with what it was given.

    Args:
        cluster_spec: The cluster.
        master: What `master` answers when no task is asked for.
        task_type: The job of this task.
        task_id: Its number in the job.
        environment: What `environment` answers.
        num_accelerators: What `num_accelerators` answers, such as ``{"GPU": 8}``.
        rpc_layer: The scheme of `master`.

    Raises:
        ClusterError: If `cluster_spec` does not describe a cluster.

    Example:
        >>> cluster = ClusterSpec({"worker": ["host0:2222", "host1:2222"]})
        >>> resolver = SimpleClusterResolver(cluster, task_type="worker", task_id=1)
        >>> resolver.master("worker", 0)
        'host0:2222'
    """

    def __init__(
        self,
        cluster_spec: ClusterSpec | Mapping[str, Tasks],
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: Mapping[str, int] | None = None,
        rpc_layer: str | None = None,
    ) -> None:
        self._cluster = ClusterSpec(cluster_spec)
        self._master = master
        self._task_type = task_type
        self._task_id = task_id
        self._environment = environment
        self._num_accelerators = dict(num_accelerators or {})
        self._rpc_layer = rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """The cluster that was given."""
        return self._cluster

    @property
    def environment(self) -> str:
        """The name that was given."""
        return self._environment

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """The address of the task that is asked for; without one, the `master` that was given.

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
        layer = self.rpc_layer if rpc_layer is None else rpc_layer
        return with_scheme(self._master, layer) if self._master else ""

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """The counts that were given, for every task.

        Args:
            task_type: Ignored.
            task_id: Ignored.
            config_proto: Ignored.

        Returns:
            The counts, by kind.
        """
        return dict(self._num_accelerators)
