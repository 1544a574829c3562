"""The resolver for TPUs: those of this machine, and the other hosts of their slice.

A program for TPUs runs on the hosts that have them, one process on each; nothing is
connected to over the network. GKE tells the hosts by environment variables, which JAX
reads; on other TPU machines the metadata server tells them, which JAX also asks, but
with a package that Replicax does not need otherwise.
"""

from __future__ import annotations

import dataclasses
import enum
import os
from typing import Any

import jax

from replicax.backend import devices
from replicax.backend.topology import Topology
from replicax.cluster import bounds, environment, google_metadata, json_api
from replicax.cluster.addresses import task_addresses
from replicax.cluster.resolver import ClusterResolver
from replicax.cluster.spec import ClusterSpec
from replicax.core.errors import ClusterPlatformError, PlatformReplyError
from replicax.core.notices import notify_once
from replicax.core.typing import Device
from replicax.jax_internals.processes import gke_tpu_hosts, is_tpu_host

_GKE_PLACE = "TPU_WORKER_ID"
_MAX_SHOWN = 200

PORT = 8482  # where JAX's own TPU detection puts the coordinator


@dataclasses.dataclass(frozen=True, slots=True)
class TPUSystemMetadata:
    """Facts about the TPUs of a slice, or about the devices that stand for them.

    Attributes:
        num_cores: Devices of all hosts.
        num_hosts: Hosts.
        num_of_cores_per_host: Devices of each.
        topology: Always None: JAX arranges the devices itself.
        devices: The devices.

    Example:
        >>> TPUSystemMetadata(8, 2, 4, None, ()).num_hosts
        2
    """

    num_cores: int
    num_hosts: int
    num_of_cores_per_host: int
    topology: Topology | None
    devices: tuple[Device, ...]


class HardwareFeature:
    """What the TPUs have beside their cores: embedding devices, which JAX does not offer.

    Args:
        tpu_hardware_feature_proto: Accepted because it is documented.

    Example:
        >>> feature = HardwareFeature()
        >>> feature.embedding_feature.name, feature.num_embedding_devices_per_chip
        ('UNSUPPORTED', 0)
    """

    class EmbeddingFeature(enum.Enum):
        """The kinds of embedding devices."""

        UNSUPPORTED = "UNSUPPORTED"
        V1 = "V1"
        V2 = "V2"

    def __init__(self, tpu_hardware_feature_proto: Any = None) -> None:
        """Features of the TPUs of this job."""
        del tpu_hardware_feature_proto

    @property
    def embedding_feature(self) -> EmbeddingFeature:
        """Which kind of embedding devices programs can use: none."""
        return HardwareFeature.EmbeddingFeature.UNSUPPORTED

    @property
    def num_embedding_devices_per_chip(self) -> int:
        """How many of them a chip has: none."""
        return 0


class TPUClusterResolver(ClusterResolver):
    """The TPUs of this machine, with the other hosts of their slice.

    Without a TPU the devices that JAX has here stand for one, and a notice says so once.

    Args:
        tpu: Which TPU; the one of this machine in every case. An address or the name of another
            one has no meaning: start the program on its hosts.
        zone: Ignored.
        project: Ignored.
        job_name: The job of the hosts.
        coordinator_name: The job of a coordinator that is listed too, if `coordinator_address`
            is given.
        coordinator_address: Its address.
        credentials: Ignored.
        service: Ignored.
        discovery_url: Ignored.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings(action="ignore"):
        ...     resolver = TPUClusterResolver(tpu="")
        >>> resolver.get_job_name(), resolver.task_id, resolver.cluster_spec()
        ('worker', 0, ClusterSpec({}))
    """

    def __init__(
        self,
        tpu: str | None = None,
        zone: str | None = None,
        project: str | None = None,
        job_name: str = "worker",
        coordinator_name: str | None = None,
        coordinator_address: str | None = None,
        credentials: Any = "default",
        service: Any = None,
        discovery_url: str | None = None,
    ) -> None:
        self._job = job_name
        self._coordinator = (coordinator_name, coordinator_address)
        self._topology: Topology | None = None
        if not is_present():
            _tell_that_there_is_none(tpu)

    @staticmethod
    def connect(
        tpu: str | None = None, zone: str | None = None, project: str | None = None
    ) -> TPUClusterResolver:
        """A resolver that is ready for use; there is nothing to connect to.

        Args:
            tpu: See the constructor.
            zone: See the constructor.
            project: See the constructor.

        Returns:
            The resolver.

        Example:
            >>> import warnings
            >>> with warnings.catch_warnings(action="ignore"):
            ...     TPUClusterResolver.connect("").get_master()
            ''
        """
        return TPUClusterResolver(tpu, zone, project)

    def cluster_spec(self) -> ClusterSpec:
        """The hosts of the slice; empty if this machine is the only one.

        Returns:
            The addresses of the hosts, as one job.

        Raises:
            ClusterPlatformError: If the platform does not tell the hosts.
            PlatformReplyError: If what it says cannot be right.
        """
        hosts, _ = _slice()
        if len(hosts) < 2:
            return ClusterSpec({})
        cluster = {self._job: task_addresses(hosts, PORT)}
        name, address = self._coordinator
        if name and address:
            cluster[name] = [address]
        return ClusterSpec(cluster)

    def _find_task(self) -> tuple[str | None, int | None]:
        return self._job, _slice()[1]

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """The address of a host of the slice; empty if this machine is the only one.

        Args:
            task_type: The job of the host; this host's own if None.
            task_id: Its number in the job; this host's own if None.
            rpc_layer: The scheme; the resolver's own if None.

        Returns:
            The address, with its scheme.

        Raises:
            ClusterError: If the slice does not have the host.
        """
        return super().master(task_type, task_id, rpc_layer) if self.cluster_spec() else ""

    def get_master(self) -> str:
        """The address of this host; empty if it is the only one."""
        return self.master()

    def get_job_name(self) -> str:
        """The job of the hosts."""
        return self.task_type or self._job

    def get_coordination_service_leader(self) -> str:
        """The task that the others meet at."""
        return f"/job:{self.get_job_name()}/task:0"

    def set_tpu_topology(self, serialized_tpu_topology: bytes | str) -> None:
        """Says how the devices are arranged, where another process has found that out.

        `get_tpu_system_metadata` gives it back.

        Args:
            serialized_tpu_topology: What ``Topology.serialized`` returned.

        Raises:
            ValueError: If it is no topology.

        Example:
            >>> import warnings
            >>> grid = Topology(mesh_shape=[1, 1, 1, 1], device_coordinates=[[[0, 0, 0, 0]]])
            >>> with warnings.catch_warnings(action="ignore"):
            ...     resolver = TPUClusterResolver("")
            >>> resolver.set_tpu_topology(grid.serialized())
            >>> resolver.get_tpu_system_metadata().topology.num_tasks
            1
        """
        try:
            self._topology = Topology(serialized=serialized_tpu_topology)
        except (KeyError, TypeError, UnicodeDecodeError, ValueError) as error:
            raise ValueError(
                f"set_tpu_topology got {serialized_tpu_topology!r:.100}, which is no serialized "
                f"topology: {error}. Pass what tf.tpu.experimental.Topology.serialized returned."
            ) from error

    @property
    def tpu_hardware_feature(self) -> HardwareFeature:
        """What the devices have beside their cores; starts JAX."""
        return HardwareFeature()

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """The devices of each host; without a TPU, those that stand for it. Starts JAX.

        Args:
            task_type: Ignored: all hosts have as many.
            task_id: Ignored.
            config_proto: Ignored.

        Returns:
            The number of devices, as ``{"TPU": 4}``.
        """
        return {"TPU": len(devices.local_devices())}

    def get_tpu_system_metadata(self) -> TPUSystemMetadata:
        """Facts about the devices of all hosts that have met; starts JAX."""
        local = devices.local_devices()
        everywhere = tuple(jax.devices())
        hosts = len({device.process_index for device in everywhere})
        return TPUSystemMetadata(len(everywhere), hosts, len(local), self._topology, everywhere)


def is_present() -> bool:
    """Whether this machine has a TPU, a real one or virtual devices that are called so.

    Example:
        >>> is_present()
        False
    """
    return is_tpu_host() or bool(devices.list_physical_devices("TPU"))


def is_slice_present() -> bool:
    """Whether this machine is one of several hosts of a TPU slice.

    Example:
        >>> is_slice_present()
        False
    """
    return is_tpu_host() and len(_slice()[0]) > 1


def _slice() -> tuple[list[str], int]:
    """The hosts of this machine's slice and its place among them; itself if it has none."""
    if not is_tpu_host():
        return ["localhost"], 0
    if os.environ.get("MEGASCALE_NUM_SLICES", "1") not in ("", "1"):
        raise ClusterPlatformError(
            f"MEGASCALE_NUM_SLICES is {os.environ['MEGASCALE_NUM_SLICES']}: of several TPU slices "
            "no host knows the others' addresses. List them in TF_CONFIG, or in a "
            "SimpleClusterResolver."
        )
    found = _gke_slice() or _metadata_slice()
    hosts = [host.partition(":")[0] for host in found[0]]
    if found[1] >= len(hosts):
        raise PlatformReplyError(
            f"this is host {found[1]} of the TPU slice, which has {len(hosts)}: "
            f"{','.join(hosts)[:_MAX_SHOWN]!r}."
        )
    return hosts, found[1]


def _gke_slice() -> tuple[list[str], int] | None:
    if _GKE_PLACE in os.environ:  # JAX makes a number of it
        environment.whole_number(_GKE_PLACE, "GKE sets it on the hosts of a TPU slice.")
    return gke_tpu_hosts()


def _metadata_slice() -> tuple[list[str], int]:
    if "TPU_SKIP_MDS_QUERY" in os.environ:
        return ["localhost"], 0
    try:
        endpoints = google_metadata.read_attribute("worker-network-endpoints").split(",")
        place = google_metadata.read_attribute("agent-worker-number")
    except json_api.PlatformApiError as error:
        if error.status != 404:
            raise
        return ["localhost"], 0  # the machine is not part of a slice
    # Either host names, or triples of name, id and address.
    number = bounds.whole_number(place.strip())
    if number is None:
        raise PlatformReplyError(
            f"the metadata server says agent-worker-number is {place[:_MAX_SHOWN]!r}; expected a "
            "whole number."
        )
    return [endpoint.rpartition(":")[2] for endpoint in endpoints], number


def _tell_that_there_is_none(tpu: str | None) -> None:
    named = f" {tpu!r}" if tpu else ""
    notify_once(
        ("no TPU", tpu or ""),
        f"There is no TPU{named} on this machine: the devices that JAX has here stand for it. To "
        "use a TPU, start the program on the hosts that have it.",
    )
