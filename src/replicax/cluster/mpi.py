"""The resolver for processes that ``mpirun`` or ``mpiexec`` started.

A launcher tells each process its rank and the number of ranks, under names of its
own; where the other ranks are only the scheduler knows, or the caller. JAX's own
detection reads the ranks of Open MPI 4 from the same variables, and no others, so the
table here is used for all. No MPI library is called.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence

from replicax.cluster import environment, hostlist, slurm
from replicax.cluster.addresses import task_addresses
from replicax.cluster.resolver import ClusterResolver
from replicax.cluster.spec import ClusterSpec
from replicax.core.errors import ClusterError, ClusterPlatformError


@dataclasses.dataclass(frozen=True, slots=True)
class MpiLauncher:
    """How one family of launchers tells a process its place.

    Attributes:
        name: For messages.
        rank: The variable with the rank of this process.
        size: The variable with the number of ranks.
        local_size: The variable with the number of ranks on this host.

    Example:
        >>> MpiLauncher("Open MPI", "RANK", "SIZE", "LOCAL_SIZE").is_present()
        False
    """

    name: str
    rank: str
    size: str
    local_size: str

    def is_present(self) -> bool:
        """Whether it started this process."""
        return not environment.missing(self.rank, self.size)


LAUNCHERS = (
    MpiLauncher(
        "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"
    ),
    MpiLauncher(
        "MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"
    ),
    MpiLauncher("MPICH, Intel MPI or another PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
)

_ADVICE = "Start the program with mpirun or mpiexec."


class MPIClusterResolver(ClusterResolver):
    """The ranks of an MPI job, each one a worker.

    Where the ranks are is taken from `hosts`, or from the scheduler: Slurm, PBS or LSF.
    When all ranks are on this host nobody needs to be asked.

    Args:
        hosts: The host of each rank, or host to number of ranks, filled one after the other.
        port_base: The port of the first rank of a host; the next ones count up.
        rpc_layer: The scheme of `master`.

    Raises:
        ClusterPlatformError: If no launcher that is known started this process, or nobody
            says where the other ranks are.
        ClusterError: If the hosts do not fit the number of ranks.

    Example:
        >>> import os
        >>> ranks = {"PMI_RANK": "1", "PMI_SIZE": "3"}
        >>> os.environ.update(ranks)
        >>> resolver = MPIClusterResolver({"n1": 2, "n2": 1})
        >>> resolver.cluster_spec(), resolver.task_id
        (ClusterSpec({'worker': ['n1:8888', 'n1:8889', 'n2:8888']}), 1)
        >>> for name in ranks:
        ...     del os.environ[name]
    """

    def __init__(
        self,
        hosts: Sequence[str] | Mapping[str, int] | None = None,
        port_base: int = 8888,
        rpc_layer: str | None = None,
    ) -> None:
        launcher = _launcher()
        self._rank = environment.whole_number(launcher.rank, _ADVICE)
        size = environment.whole_number(launcher.size, _ADVICE)
        if self._rank >= size:
            raise ClusterPlatformError(
                f"{launcher.name} says {launcher.rank}={self._rank} and {launcher.size}={size}; "
                "expected a rank below the size."
            )
        self._addresses = task_addresses(_rank_hosts(hosts, size, launcher), port_base)
        self._rpc_layer = rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """One worker for each rank."""
        return ClusterSpec({"worker": self._addresses})

    def _find_task(self) -> tuple[str | None, int | None]:
        return "worker", self._rank


def is_present() -> bool:
    """Whether an MPI launcher started this process.

    Example:
        >>> is_present()
        False
    """
    return any(launcher.is_present() for launcher in LAUNCHERS)


def _launcher() -> MpiLauncher:
    for launcher in LAUNCHERS:
        if launcher.is_present():
            return launcher
    pairs = "; ".join(f"{each.rank} and {each.size} ({each.name})" for each in LAUNCHERS)
    raise ClusterPlatformError(
        f"this process was not started by an MPI launcher: none of these is set: {pairs}. {_ADVICE}"
    )


def _rank_hosts(
    given: Sequence[str] | Mapping[str, int] | None, size: int, launcher: MpiLauncher
) -> list[str]:
    if given is not None:
        source = "hosts"
        hosts = hostlist.block_hosts(given) if isinstance(given, Mapping) else list(given)
    elif os.environ.get(launcher.local_size) == str(size):
        return ["localhost"] * size
    else:
        source, hosts = _scheduled_hosts(launcher, size)
    if len(hosts) != size:
        raise ClusterError(
            f"{source} has {len(hosts)} places, {hosts}, for {size} ranks. Pass hosts=, the host "
            "of each rank or a dict from host to number of ranks."
        )
    return hosts


def _scheduled_hosts(launcher: MpiLauncher, size: int) -> tuple[str, list[str]]:
    """Who says it, and the host of each rank in the allocation."""
    hosts = slurm.task_hosts(size)
    if hosts is not None:
        return "Slurm", hosts
    for scheduler, variable in (("PBS", "PBS_NODEFILE"), ("LSF", "LSB_DJOB_HOSTFILE")):
        if not environment.missing(variable):
            return scheduler, _read_host_file(variable)
    raise ClusterPlatformError(
        f"{launcher.name} started {size} ranks and does not say on which hosts, and there is no "
        "Slurm, PBS or LSF to ask. Pass hosts=, the host of each rank or a dict from host to "
        "number of ranks."
    )


def _read_host_file(variable: str) -> list[str]:
    path = environment.required(variable, "")
    return environment.read_file(path, f"the host file {path!r} of {variable}").split()
