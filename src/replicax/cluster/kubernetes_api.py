"""Lists pods through the API of a Kubernetes cluster."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import urllib.parse

from replicax.cluster import environment, json_api
from replicax.cluster.reply import Reply
from replicax.core.errors import ClusterPlatformError

# Where a pod finds its own account.
ACCOUNT_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"
# Where `kubectl proxy` listens unless told otherwise.
PROXY_URL = "http://127.0.0.1:8001"

_INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"


@dataclasses.dataclass(frozen=True, slots=True)
class Pod:
    """What the resolver needs to know of a pod.

    Attributes:
        name: Its name.
        phase: ``Running``, or why not.
        ip: Its address; empty before it has one.
        hostname: What it calls itself.
        index: Its number in an indexed job; None elsewhere.

    Example:
        >>> Pod("train-0-x7k2p", "Running", "10.0.0.7", "train-0", 0).index
        0
    """

    name: str
    phase: str
    ip: str
    hostname: str = ""
    index: int | None = None

    @classmethod
    def _from_reply(cls, item: Reply) -> Pod:
        """A pod as the API describes it."""
        metadata, spec, status = map(item.object, ("metadata", "spec", "status"))
        name = metadata.text("name")
        return cls(
            name,
            status.text("phase") or "unknown",
            status.ip("podIP"),
            spec.text("hostname") or name,
            metadata.object("annotations").number(_INDEX_ANNOTATION),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class KubernetesApi:
    """The API of one Kubernetes cluster.

    Attributes:
        url: Its address.
        namespace: Where to look for pods; all namespaces if None.
        account_dir: A folder with the files ``token`` and ``ca.crt``, as it is mounted into
            pods; no token is sent if None. The token is read for each request: it changes.

    Example:
        >>> KubernetesApi("http://127.0.0.1:8001", namespace="training").namespace
        'training'
    """

    url: str = PROXY_URL
    namespace: str | None = None
    account_dir: str | None = None

    @classmethod
    def in_cluster(cls, account_dir: str = ACCOUNT_DIR) -> KubernetesApi:
        """The API of the cluster that this process is a pod of.

        Args:
            account_dir: The folder of the pod's service account.

        Returns:
            The API, with the namespace of the pod.

        Raises:
            ClusterPlatformError: If this is no pod, or one without an account.
        """
        host = os.environ.get("KUBERNETES_SERVICE_HOST")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise ClusterPlatformError(
                "this process is not in a Kubernetes pod: KUBERNETES_SERVICE_HOST is not set. "
                "Outside of one, start 'kubectl proxy' and pass "
                "executable_location=KubernetesExecutableLocation.OFF_CLUSTER."
            )
        namespace = _read(account_dir, "namespace")
        shown = f"[{host}]" if ":" in host else host
        return cls(f"https://{shown}:{port}", namespace, account_dir)

    def _pods_url(self, label_selector: str) -> str:
        """The address of the list of pods with these labels.

        Example:
            >>> KubernetesApi("http://127.0.0.1:8001", namespace="training")._pods_url("app=net")
            'http://127.0.0.1:8001/api/v1/namespaces/training/pods?labelSelector=app%3Dnet'
        """
        query = urllib.parse.urlencode({"labelSelector": label_selector})
        where = (
            f"namespaces/{urllib.parse.quote(self.namespace, safe='')}/" if self.namespace else ""
        )
        return f"{self.url.rstrip('/')}/api/v1/{where}pods?{query}"

    def list_pods(self, label_selector: str) -> list[Pod]:
        """The pods with these labels, in no order.

        Args:
            label_selector: The labels, as ``kubectl`` takes them: ``app=net,role=worker``.

        Returns:
            What the API says of each pod.

        Raises:
            ClusterPlatformError: If the API does not answer, or refuses.
            PlatformReplyError: If its answer cannot be right.
        """
        token = ca_file = None
        if self.account_dir is not None:
            token = _read(self.account_dir, "token")
            ca_file = str(pathlib.Path(self.account_dir) / "ca.crt")
        url = self._pods_url(label_selector)
        try:
            answer = json_api.fetch_json(url, token=token, ca_file=ca_file)
        except json_api.PlatformApiError as error:
            if error.status != 403:
                raise
            where = f" in {self.namespace!r}" if self.namespace else ""
            raise json_api.PlatformApiError(
                f"{error} Give the service account of the pod a role that may list pods{where}.",
                error.status,
            ) from None
        return [Pod._from_reply(item) for item in answer.objects("items")]


def _read(account_dir: str, name: str) -> str:
    path = str(pathlib.Path(account_dir) / name)
    advice = "Do not set automountServiceAccountToken: false on the pod."
    return environment.read_file(path, f"the file {path!r} of the pod's account", advice).strip()
