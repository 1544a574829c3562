"""Which platform started this process: a table whose order is the priority.

What the user wrote comes first, then what a launcher set for this very process, then
what only says on which kind of machine it runs. ``mpirun`` stands before Slurm: inside
``sbatch`` both have set their variables, and only those of ``mpirun`` differ by process.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

from replicax.cluster import kubernetes, mpi, sagemaker, slurm, tf_config, tpu
from replicax.cluster.resolver import ClusterResolver


@dataclasses.dataclass(frozen=True, slots=True)
class Platform:
    """One row of the table.

    Attributes:
        name: For messages.
        is_present: Whether the platform started this process; touches the network for TPUs only.
        resolver: Makes the resolver for it.

    Example:
        >>> [platform.name for platform in PLATFORMS][:2]
        ['TF_CONFIG', 'SageMaker']
    """

    name: str
    is_present: Callable[[], bool]
    resolver: Callable[[], ClusterResolver]


PLATFORMS = (
    Platform(
        "TF_CONFIG", lambda: tf_config.VARIABLE in os.environ, tf_config.TFConfigClusterResolver
    ),
    Platform("SageMaker", sagemaker.is_present, sagemaker.SageMakerClusterResolver),
    Platform("MPI", mpi.is_present, mpi.MPIClusterResolver),
    Platform("Slurm", slurm.is_present, slurm.SlurmClusterResolver),
    Platform("TPU slice", tpu.is_slice_present, tpu.TPUClusterResolver),
    Platform("Kubernetes", kubernetes.is_present, kubernetes.of_own_job),
)


def detect() -> ClusterResolver:
    """The resolver of the platform that started this process.

    Looked for in this order: ``TF_CONFIG``, SageMaker, MPI, Slurm, a TPU slice, an indexed Job
    of Kubernetes. Without any of them a `TFConfigClusterResolver`, whose cluster is empty.

    Returns:
        The resolver.

    Raises:
        ClusterError: If the platform is there, but describes no valid cluster.
        ClusterPlatformError: If it is there, but does not answer.

    Example:
        >>> detect().cluster_spec()
        ClusterSpec({})
    """
    for platform in PLATFORMS:
        if platform.is_present():
            return platform.resolver()
    return tf_config.TFConfigClusterResolver()
