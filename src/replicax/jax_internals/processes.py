"""Private APIs of JAX about this process: its devices, its cluster, and the other processes."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import jax
from jax._src import cloud_tpu_init, clusters, distributed, xla_bridge
from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]


def has_started() -> bool:
    """Whether a JAX backend is running, so that devices cannot be configured any more.

    JAX has no public question for this: every public way to ask starts the backend.
    """
    return xla_bridge.backends_are_initialized()


# -- clusters ----------------------------------------------------------------------------------
# JAX knows how Slurm and TPU slices tell a process its place. It has no public way to ask:
# `jax.distributed.initialize` uses the answer, but starts the runtime at once.


@dataclasses.dataclass(frozen=True, slots=True)
class DetectedProcess:
    """The place of this process in a job, as the platform that started it says."""

    process_id: int
    num_processes: int


def slurm_process() -> DetectedProcess | None:
    """The place of this process in its Slurm job step; None if it is not in one."""
    cluster = clusters.SlurmCluster
    if not cluster.is_env_present():
        return None
    return DetectedProcess(cluster.get_process_id(), cluster.get_process_count())


def is_tpu_host() -> bool:
    """Whether JAX saw TPU chips on this machine when it was imported."""
    return cloud_tpu_init.running_in_cloud_tpu_vm


def gke_tpu_hosts() -> tuple[list[str], int] | None:
    """The hosts of this process's TPU slice and its place among them, as GKE says.

    None if this is no TPU host, or one that GKE did not set up.
    """
    cluster = clusters.GkeTpuCluster
    if not cluster.is_env_present():
        return None
    return cluster._get_worker_list_in_slice(), cluster._get_process_id_in_slice()


# -- several processes -------------------------------------------------------------------------
# `jax.distributed.initialize` starts the coordination service inside process 0, so that losing
# process 0 ends everyone. A launcher that outlives the workers can have it instead; then process 0
# only connects, which has no public spelling. Nor has the client, which tells who is alive and
# carries small messages between the processes.


def start_coordination_service(
    address: str, num_processes: int, *, heartbeat_seconds: int, shutdown_seconds: int
) -> Any:
    """A coordination service for `num_processes` that call `connect_to_coordination`."""
    return _jax.get_distributed_runtime_service(
        address,
        num_processes,
        heartbeat_timeout=heartbeat_seconds,
        shutdown_timeout=shutdown_seconds,
        recoverable=True,
    )


def connect_to_coordination(
    address: str,
    num_processes: int,
    process_id: int,
    *,
    heartbeat_seconds: int,
    start_seconds: int,
) -> None:
    """What `jax.distributed.initialize` does in a process that does not host the service."""
    state = distributed.global_state
    state.coordinator_address = address
    state.process_id = process_id
    state.num_processes = num_processes
    client = _jax.get_distributed_runtime_client(
        address,
        process_id,
        init_timeout=start_seconds,
        use_compression=True,
        heartbeat_timeout=heartbeat_seconds,
    )
    state.client = client
    client.connect()


def use_gloo_at(host: str) -> None:
    """Collectives of the CPU backend listen at `host`; to be called before JAX starts.

    JAX makes gloo without an address, which then listens at what the name of the machine
    resolves to, whatever the cluster says.
    """

    def make_client() -> Any:
        collectives = None
        if jax.config.jax_cpu_collectives_implementation == "gloo":  # pyright: ignore[reportAttributeAccessIssue]
            collectives = _jax.make_gloo_tcp_collectives(
                distributed_client=coordination_client(), hostname=host
            )
        return xla_bridge.make_cpu_client(collectives)

    xla_bridge.register_backend_factory("cpu", make_client, priority=0, fail_quietly=False)


def coordination_client() -> Any:
    """The connection of this process to the coordination service; None before there is one."""
    return distributed.global_state.client


def leave_coordination() -> None:
    """Disconnects from a coordination service that is still there and in another process."""
    state = distributed.global_state
    if state.client is not None:
        state.client.shutdown()


def forget_coordination() -> None:
    """Leaves without saying goodbye, which would end the process where the service is gone."""
    state = distributed.global_state
    for item in (state.client, state.service):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(item))  # its destructor says goodbye too
    state.client = state.service = None
