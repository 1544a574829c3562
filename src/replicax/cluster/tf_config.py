"""The resolver that reads the environment variable ``TF_CONFIG``."""

from __future__ import annotations

import os

from replicax.cluster.resolver import ClusterResolver
from replicax.cluster.spec import ClusterSpec
from replicax.cluster.tf_config_format import TFConfig, parse_tf_config

VARIABLE = "TF_CONFIG"


class TFConfigClusterResolver(ClusterResolver):
    """Reads who is in the cluster, and which task this is, from ``TF_CONFIG``.

    The variable holds JSON: ``{"cluster": {"worker": ["host0:2222", "host1:2222"]},
    "task": {"type": "worker", "index": 0}}``. Unset, it means a single process: an empty
    cluster, no task type and no task id. It is read at every question and checked
    when the resolver is made.

    Args:
        task_type: What to use instead of the type of the task in the variable.
        task_id: What to use instead of its index.
        rpc_layer: What to use instead of its ``rpc_layer``.
        environment: What `environment` answers.

    Raises:
        ClusterError: If the variable does not describe a cluster and a task in it.

    Example:
        >>> import os
        >>> os.environ["TF_CONFIG"] = '''{
        ...     "cluster": {"worker": ["localhost:12345", "localhost:23456"]},
        ...     "task": {"type": "worker", "index": 1}
        ... }'''
        >>> resolver = TFConfigClusterResolver()
        >>> resolver.task_type, resolver.task_id
        ('worker', 1)
        >>> resolver.cluster_spec()
        ClusterSpec({'worker': ['localhost:12345', 'localhost:23456']})
        >>> del os.environ["TF_CONFIG"]
    """

    _is_local_when_alone = True

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
    ) -> None:
        self._task_type = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer
        self._environment = environment
        self._read()

    def _read(self) -> TFConfig:
        return parse_tf_config(os.environ.get(VARIABLE), self._task_type, self._task_id)

    def cluster_spec(self) -> ClusterSpec:
        """The cluster that the variable describes; empty if it is not set.

        Returns:
            The cluster.

        Raises:
            ClusterError: If the variable does not describe a cluster and a task in it.
        """
        return self._read().cluster

    def _find_task(self) -> tuple[str | None, int | None]:
        config = self._read()
        return config.task_type, config.task_id

    @property
    def rpc_layer(self) -> str | None:
        """The scheme of addresses: the one that was given, or that of the variable."""
        return self._read().rpc_layer if self._rpc_layer is None else self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer

    @property
    def environment(self) -> str | None:
        """The name that was given."""
        return self._environment

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """The address of a task; empty in a cluster of one.

        A ``session_master`` in the variable is the answer to every question.

        Args:
            task_type: The job of the task; this task's own if None.
            task_id: Its number in the job; this task's own if None.
            rpc_layer: The scheme; the resolver's own if None.

        Returns:
            The address, with its scheme.

        Raises:
            ClusterError: If the cluster does not have the task.
        """
        fixed = self._read().session_master
        return super().master(task_type, task_id, rpc_layer) if fixed is None else fixed
