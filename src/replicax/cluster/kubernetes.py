"""The resolver for pods of a Kubernetes cluster.

JAX's own detection needs the ``kubernetes`` package and a Job or JobSet with a headless
service; pods by label need neither.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, Sequence
from typing import Any

from replicax.cluster.addresses import task_addresses
from replicax.cluster.kubernetes_api import KubernetesApi, Pod
from replicax.cluster.reply import Reply
from replicax.cluster.resolver import ClusterResolver
from replicax.cluster.spec import ClusterSpec
from replicax.core.errors import ClusterError, ClusterPlatformError

_DEFAULT_LABELS = {"worker": ["job-name=tensorflow"]}
_OWN_NAMES = ("POD_NAME", "HOSTNAME")


class KubernetesExecutableLocation(enum.Enum):
    """Where the program runs: in a pod of the cluster, or elsewhere.

    Example:
        >>> KubernetesExecutableLocation.OFF_CLUSTER.name
        'OFF_CLUSTER'
    """

    WITHIN_CLUSTER = 0
    OFF_CLUSTER = 1


class KubernetesClusterResolver(ClusterResolver):
    """The running pods with given labels, by job.

    Pods of an indexed Job are in the order of their index, others in that of their names.
    Which of them this is, the names of the pods tell: ``POD_NAME`` or ``HOSTNAME`` in the
    environment. `task_type` and `task_id` can be set where they do not.

    Args:
        job_to_label_mapping: Job name to label selectors, such as
            ``{"worker": ["job-name=train"]}``; pods of the Job ``tensorflow`` if None.
        tf_server_port: The port of every task.
        rpc_layer: The scheme of `master`.
        override_client: A `KubernetesApi`, or an object with the method
            ``list_pod_for_all_namespaces(label_selector=...)`` of the ``kubernetes`` package.
        executable_location: In a pod, its own account is used and its own namespace searched;
            elsewhere ``kubectl proxy`` must run on this machine.

    Raises:
        ClusterError: If `executable_location` or `override_client` is something else.
        ClusterPlatformError: If the process should be in a pod and is not.

    Example:
        >>> class OnePod(KubernetesApi):
        ...     def list_pods(self, label_selector):
        ...         return [Pod("train-0", "Running", "10.0.0.7")]
        >>> labels = {"worker": ["job-name=train"]}
        >>> KubernetesClusterResolver(labels, override_client=OnePod()).cluster_spec()
        ClusterSpec({'worker': ['10.0.0.7:8470']})
    """

    def __init__(
        self,
        job_to_label_mapping: Mapping[str, Sequence[str]] | None = None,
        tf_server_port: int = 8470,
        rpc_layer: str | None = "grpc",
        override_client: Any = None,
        executable_location: KubernetesExecutableLocation = (
            KubernetesExecutableLocation.WITHIN_CLUSTER
        ),
    ) -> None:
        self._labels = {
            job: _selectors(job, selectors)
            for job, selectors in (job_to_label_mapping or _DEFAULT_LABELS).items()
        }
        self._port = tf_server_port
        self._rpc_layer = rpc_layer
        self._client = _client(override_client, executable_location)

    def cluster_spec(self) -> ClusterSpec:
        """The pods as they are now.

        Returns:
            The addresses of the pods, by job.

        Raises:
            ClusterPlatformError: If the API refuses, a pod does not run, or none is found.
            PlatformReplyError: If what the API says cannot be right.
        """
        return ClusterSpec(
            {
                job: [task_addresses([pod.ip], self._port)[0] for pod in pods]
                for job, pods in self._pods().items()
            }
        )

    def _find_task(self) -> tuple[str | None, int | None]:
        names = {os.environ[name] for name in _OWN_NAMES if os.environ.get(name)}
        for job, pods in self._pods().items():
            for index, pod in enumerate(pods):
                if names & {pod.name, pod.hostname}:
                    return job, index
        return None, None

    def _pods(self) -> dict[str, list[Pod]]:
        return {
            job: [pod for selector in selectors for pod in self._selected(selector)]
            for job, selectors in self._labels.items()
        }

    def _selected(self, selector: str) -> list[Pod]:
        pods = _list_pods(self._client, selector)
        if not pods:
            raise ClusterPlatformError(
                f"no pod has the labels {selector!r}. Correct job_to_label_mapping, or wait until "
                "the pods exist."
            )
        for pod in pods:
            if pod.phase != "Running" or not pod.ip:
                raise ClusterPlatformError(
                    f"the pod {pod.name!r} does not run, its phase is {pod.phase!r}. Wait until "
                    f"all pods with the labels {selector!r} run."
                )
        if all(pod.index is not None for pod in pods):
            return sorted(pods, key=lambda pod: (pod.index or 0, pod.name))
        return sorted(pods, key=lambda pod: pod.name)


def is_present() -> bool:
    """Whether this is a pod of an indexed Job, whose other pods can be found by its name.

    Example:
        >>> is_present()
        False
    """
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and _own_job() is not None


def of_own_job() -> KubernetesClusterResolver:
    """The resolver for the indexed Job that this pod belongs to.

    Raises:
        ClusterPlatformError: If this is no pod of an indexed Job.

    Example:
        >>> of_own_job()
        Traceback (most recent call last):
        ...
        replicax.core.errors.ClusterPlatformError: this process is no pod of an indexed Job: ...
    """
    job = _own_job()
    if job is None:
        raise ClusterPlatformError(
            "this process is no pod of an indexed Job: HOSTNAME does not end in "
            "JOB_COMPLETION_INDEX. Set completionMode: Indexed, or say which labels the pods have: "
            "KubernetesClusterResolver({'worker': ['app=train']})."
        )
    return KubernetesClusterResolver({"worker": [f"job-name={job}"]})


def _own_job() -> str | None:
    """The name of the indexed Job: its pods are called by it and their index."""
    index = os.environ.get("JOB_COMPLETION_INDEX")
    name, dash, suffix = os.environ.get("HOSTNAME", "").rpartition("-")
    return name if index and dash and suffix == index else None


def _selectors(job: str, selectors: object) -> list[str]:
    if not isinstance(selectors, list | tuple) or not all(isinstance(s, str) for s in selectors):
        raise ClusterError(
            f"the labels of job {job!r} are {selectors!r}; expected a list of label selectors such "
            "as ['job-name=train']."
        )
    return list(selectors)


def _client(override_client: Any, location: object) -> Any:
    if not isinstance(location, KubernetesExecutableLocation):
        names = [f"KubernetesExecutableLocation.{m.name}" for m in KubernetesExecutableLocation]
        raise ClusterError(f"executable_location is {location!r}; expected one of {names}.")
    if override_client is None:
        if location is KubernetesExecutableLocation.OFF_CLUSTER:
            return KubernetesApi()
        return KubernetesApi.in_cluster()
    if not isinstance(override_client, KubernetesApi) and not hasattr(
        override_client, "list_pod_for_all_namespaces"
    ):
        raise ClusterError(
            f"override_client is of type {type(override_client).__name__}; expected a "
            "KubernetesApi, or an object with list_pod_for_all_namespaces(label_selector=...)."
        )
    return override_client


def _list_pods(client: Any, selector: str) -> list[Pod]:
    if isinstance(client, KubernetesApi):
        return client.list_pods(selector)
    listed = client.list_pod_for_all_namespaces(label_selector=selector)
    found = [
        {"metadata": {"name": pod.metadata.name}, "status": _status(pod)} for pod in listed.items
    ]
    answer = Reply({"items": found}, f"the list of pods with the labels {selector!r}")
    return [Pod._from_reply(item) for item in answer.objects("items")]


def _status(pod: Any) -> dict[str, Any]:
    return {"phase": pod.status.phase, "podIP": pod.status.pod_ip}
