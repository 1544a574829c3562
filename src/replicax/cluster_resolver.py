"""Who is in the cluster: names that the documents place under ``cluster_resolver``."""

from replicax.cluster.detection import detect
from replicax.cluster.gce import GCEClusterResolver
from replicax.cluster.kubernetes import KubernetesClusterResolver, KubernetesExecutableLocation
from replicax.cluster.kubernetes_api import KubernetesApi
from replicax.cluster.mpi import MPIClusterResolver
from replicax.cluster.ray import RayClusterResolver
from replicax.cluster.resolver import ClusterResolver
from replicax.cluster.sagemaker import SageMakerClusterResolver
from replicax.cluster.simple import SimpleClusterResolver
from replicax.cluster.slurm import SlurmClusterResolver
from replicax.cluster.spec import ClusterSpec
from replicax.cluster.tf_config import TFConfigClusterResolver
from replicax.cluster.tpu import TPUClusterResolver
from replicax.cluster.union import UnionResolver

__all__ = [
    "ClusterResolver",
    "ClusterSpec",
    "GCEClusterResolver",
    "KubernetesApi",
    "KubernetesClusterResolver",
    "KubernetesExecutableLocation",
    "MPIClusterResolver",
    "RayClusterResolver",
    "SageMakerClusterResolver",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "TPUClusterResolver",
    "UnionResolver",
    "detect",
]
