"""The resolver for instance groups of Google Compute Engine."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterator

from replicax.cluster import google_metadata, json_api
from replicax.cluster.addresses import task_addresses
from replicax.cluster.resolver import ClusterResolver
from replicax.cluster.spec import ClusterSpec
from replicax.core.errors import ClusterError, ClusterPlatformError, PlatformReplyError

COMPUTE_API = "https://compute.googleapis.com/compute/v1"

_MAX_PAGES = 200  # of up to 500 machines


class GCEClusterResolver(ClusterResolver):
    """The running machines of an instance group, in the order of their addresses.

    The platform does not say which of them this is: `task_id` must differ on each.

    Args:
        project: The project of the group.
        zone: Its zone.
        instance_group: Its name.
        port: The port of every task.
        task_type: The job of the machines.
        task_id: The number of this machine.
        rpc_layer: The scheme of `master`.
        credentials: An access token, or a function that gives one; with ``"default"``, a token
            of the machine's service account.
        service: The address of the API, if it is not Google's own.

    Raises:
        ClusterError: If `credentials` or `service` is something else.

    Example:
        >>> resolver = GCEClusterResolver("project", "us-west1-a", "group", 8470, task_id=1)
        >>> resolver.task_type, resolver.task_id
        ('worker', 1)
    """

    def __init__(
        self,
        project: str,
        zone: str,
        instance_group: str,
        port: int,
        task_type: str = "worker",
        task_id: int = 0,
        rpc_layer: str | None = "grpc",
        credentials: str | Callable[[], str] | None = "default",
        service: str | None = None,
    ) -> None:
        if not (credentials is None or isinstance(credentials, str) or callable(credentials)):
            raise ClusterError(
                f"credentials is of type {type(credentials).__name__}; expected 'default', an "
                "access token, or a function that gives one."
            )
        if not (service is None or isinstance(service, str)):
            raise ClusterError(
                f"service is of type {type(service).__name__}; expected the address of the API, "
                f"such as {COMPUTE_API!r}, or None. No client library is needed."
            )
        self._zone_url = "/".join(
            [
                (service or COMPUTE_API).rstrip("/"),
                f"projects/{urllib.parse.quote(project, safe=':')}",  # "domain.com:project" exists
                f"zones/{urllib.parse.quote(zone, safe='')}",
            ]
        )
        self._group = instance_group
        self._port = port
        self._job = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer
        self._credentials = credentials

    def _find_task(self) -> tuple[str | None, int | None]:
        return self._job, self._task_id

    def cluster_spec(self) -> ClusterSpec:
        """The machines of the group that run now.

        Returns:
            One job, with the addresses of the machines in sorted order.

        Raises:
            ClusterPlatformError: If the API refuses, or no machine runs.
            PlatformReplyError: If what the API says cannot be right.
        """
        token = self._token()
        addresses = [self._address(name, token) for name in self._instances(token)]
        if not addresses:
            raise ClusterPlatformError(
                f"no machine of the instance group {self._group!r} runs in {self._zone_url}."
            )
        return ClusterSpec({self._job: sorted(task_addresses(addresses, self._port))})

    def _token(self) -> str:
        if callable(self._credentials):
            return self._credentials()
        if self._credentials in (None, "default"):
            return google_metadata.access_token()
        return self._credentials

    def _instances(self, token: str) -> Iterator[str]:
        group = urllib.parse.quote(self._group, safe="")
        url = f"{self._zone_url}/instanceGroups/{group}/listInstances"
        query = {"orderBy": "name"}
        for _ in range(_MAX_PAGES):
            page = json_api.fetch_json(
                f"{url}?{urllib.parse.urlencode(query)}",
                token=token,
                body={"instanceState": "RUNNING"},
            )
            for item in page.objects("items"):  # absent from an empty page
                yield item.text("instance").rpartition("/")[2]
            query["pageToken"] = page.text("nextPageToken")
            if not query["pageToken"]:
                return
        raise PlatformReplyError(
            f"the list of the instance group {self._group!r} has more than {_MAX_PAGES} pages; the "
            f"last one points to {query['pageToken'][:60]!r}."
        )

    def _address(self, name: str, token: str) -> str:
        url = f"{self._zone_url}/instances/{urllib.parse.quote(name, safe='')}"
        interfaces = json_api.fetch_json(url, token=token).objects("networkInterfaces")
        ip = interfaces[0].ip("networkIP") if interfaces else ""
        if not ip:
            raise ClusterPlatformError(f"the machine {name!r} has no address in its network yet.")
        return ip
