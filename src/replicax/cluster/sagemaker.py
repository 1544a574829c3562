"""The resolver for training jobs on Amazon SageMaker."""

from __future__ import annotations

from replicax.cluster import environment
from replicax.cluster.addresses import task_addresses
from replicax.cluster.resolver import ClusterResolver
from replicax.cluster.spec import ClusterSpec
from replicax.core import bounded_json
from replicax.core.errors import PlatformReplyError

_HOSTS = "SM_HOSTS"
_OWN_HOST = "SM_CURRENT_HOST"
_MAX_SHOWN = 1000
_ADVICE = "SageMaker's training toolkit sets it in every training job."


class SageMakerClusterResolver(ClusterResolver):
    """The hosts of a SageMaker training job, each one a worker, in the order of their names.

    Args:
        port: The port of every worker.
        task_type: What to use instead of ``worker`` as the type of this task.
        task_id: What to use instead of the place of this host in the list.
        rpc_layer: The scheme of `master`.
        environment: What `environment` answers.

    Example:
        >>> import os
        >>> os.environ |= {"SM_HOSTS": '["algo-2", "algo-1"]', "SM_CURRENT_HOST": "algo-2"}
        >>> resolver = SageMakerClusterResolver()
        >>> resolver.cluster_spec(), resolver.task_id
        (ClusterSpec({'worker': ['algo-1:2223', 'algo-2:2223']}), 1)
        >>> del os.environ["SM_HOSTS"], os.environ["SM_CURRENT_HOST"]
    """

    _is_local_when_alone = True

    def __init__(
        self,
        port: int = 2223,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
    ) -> None:
        self._port = int(port)
        self._task_type = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer
        self._environment = environment

    def cluster_spec(self) -> ClusterSpec:
        """One worker on each host.

        Returns:
            One job, ``worker``.

        Raises:
            ClusterPlatformError: If this is no SageMaker job.
            PlatformReplyError: If what it says cannot be right.
        """
        return ClusterSpec({"worker": task_addresses(_hosts(), self._port)})

    @property
    def environment(self) -> str | None:
        """The name that was given."""
        return self._environment

    def _find_task(self) -> tuple[str | None, int | None]:
        return "worker", _hosts().index(environment.required(_OWN_HOST, _ADVICE))


def is_present() -> bool:
    """Whether this is a SageMaker training job.

    Example:
        >>> is_present()
        False
    """
    return not environment.missing(_HOSTS, _OWN_HOST)


def _hosts() -> list[str]:
    text = environment.required(_HOSTS, _ADVICE)
    try:
        hosts = bounded_json.parse(text)
    except bounded_json.JsonError:
        hosts = None
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise PlatformReplyError(
            f"the environment variable {_HOSTS} is {text[:_MAX_SHOWN]!r}; expected a JSON list of "
            "host names."
        )
    own = environment.required(_OWN_HOST, _ADVICE)
    if own not in hosts:
        raise PlatformReplyError(
            f"this host, {_OWN_HOST}={own!r}, is not among {_HOSTS}={text[:_MAX_SHOWN]!r}."
        )
    return sorted(hosts)
