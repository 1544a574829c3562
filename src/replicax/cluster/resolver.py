"""What every cluster resolver answers, and how most of them answer it.

One resolver is one file beside this one: it says who is in the cluster and which
task this process is. `detection` has the table of those that find themselves.
"""

from __future__ import annotations

import abc
import collections
from collections.abc import Iterable
from typing import Any

import jax

from replicax.backend import devices
from replicax.cluster import roles
from replicax.cluster.spec import ClusterSpec
from replicax.core.errors import ClusterPlatformError
from replicax.jax_internals.processes import has_started


class ClusterResolver(abc.ABC):
    """Finds out who is in the cluster and which task this process is.

    A subclass has `cluster_spec`, and `_find_task` where the platform says which task
    this is. A task type or id that was set from outside always wins.

    Example:
        >>> class TwoHosts(ClusterResolver):
        ...     def cluster_spec(self):
        ...         return ClusterSpec({"worker": ["host0:2222", "host1:2222"]})
        >>> resolver = TwoHosts()
        >>> resolver.task_type, resolver.task_id = "worker", 1
        >>> resolver.master()
        'host1:2222'
    """

    _task_type: str | None = None
    _task_id: int | None = None
    _rpc_layer: str | None = None
    _is_local_when_alone = False  # whether a cluster of one task has no master to name

    @abc.abstractmethod
    def cluster_spec(self) -> ClusterSpec:
        """The cluster as it is now; asked anew at every call."""

    def _find_task(self) -> tuple[str | None, int | None]:
        """Type and id of this task, as the platform has them; None where it does not say."""
        return None, None

    @property
    def task_type(self) -> str | None:
        """The job of this task: chief, worker, ps or evaluator; None if that is not known."""
        return self._find_task()[0] if self._task_type is None else self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """The number of this task in its job; None if that is not known."""
        return self._find_task()[1] if self._task_id is None else self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """The scheme that `master` puts before an address; nothing here speaks it."""
        return self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer

    @property
    def environment(self) -> str | None:
        """The platform's name for itself; empty unless a resolver was given one."""
        return ""

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """The address of a task, with the scheme `rpc_layer`; empty if the task is not known.

        Args:
            task_type: The job of the task; this task's own if None.
            task_id: Its number in the job; this task's own if None.
            rpc_layer: The scheme; the resolver's own if None.

        Returns:
            An address such as ``grpc://10.0.0.7:2222``.

        Raises:
            ClusterError: If the cluster does not have the task.
        """
        cluster = self.cluster_spec()
        if self._is_local_when_alone and sum(map(cluster.num_tasks, cluster.jobs)) <= 1:
            return ""
        task_type = self.task_type if task_type is None else task_type
        task_id = self.task_id if task_id is None else task_id
        if task_type is None or task_id is None:
            return ""
        address = cluster.task_address(task_type, task_id)
        return with_scheme(address, self.rpc_layer if rpc_layer is None else rpc_layer)

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """How many accelerators a task has, by kind; empty if it has none.

        Those of this task are counted on this machine, which starts JAX where there are any:
        ask after the strategy was created. Those of another task are known from then on only.

        Args:
            task_type: The job of the task; this task's own if None.
            task_id: Its number in the job; this task's own if None.
            config_proto: Ignored.

        Returns:
            The number of accelerators, such as ``{"GPU": 8}``.

        Raises:
            ClusterPlatformError: If another task is asked for before the workers have met.
        """
        own = self.task_type, self.task_id
        asked = (own[0] if task_type is None else task_type, own[1] if task_id is None else task_id)
        if asked == own:
            return _local_accelerators()
        if not jax.distributed.is_initialized():
            raise ClusterPlatformError(
                f"the accelerators of {asked[0]} {asked[1]} are not known before the workers have "
                "met. Create the strategy first, or leave out task_type and task_id to count those "
                "of this task."
            )
        process = roles.id_in_cluster(self.cluster_spec(), *asked)
        names = [devices.device_name(d) for d in jax.devices() if d.process_index == process]
        return _count(name.rpartition("/device:")[2].partition(":")[0] for name in names)


def with_scheme(address: str, rpc_layer: str | None) -> str:
    """An address as a URL, or as it is without a scheme.

    Example:
        >>> with_scheme("host0:2222", "grpc")
        'grpc://host0:2222'
    """
    return f"{rpc_layer}://{address}" if rpc_layer else address


def _local_accelerators() -> dict[str, int]:
    # Before JAX has started, counting physical devices leaves it that way where it can.
    started = has_started()
    found = devices.list_logical_devices() if started else devices.list_physical_devices()
    return _count(device.device_type for device in found)


def _count(kinds: Iterable[str]) -> dict[str, int]:
    counts = collections.Counter(kinds)
    del counts["CPU"]
    return dict(counts)
