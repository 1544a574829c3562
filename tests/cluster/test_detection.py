"""Which platform is found, and which one wins where there are several."""

import pytest

from replicax.cluster import detection, kubernetes
from replicax.cluster.spec import ClusterSpec
from replicax.core.errors import ClusterError
from tests.cluster.recorded import ALLOCATION, OPEN_MPI, sagemaker_job, slurm_step
from tests.cluster.tf_config_mistakes import config

TF_CONFIG = {"TF_CONFIG": config({"worker": ["a:1"]})}
SAGEMAKER = sagemaker_job('["algo-1"]', "algo-1")
SLURM = slurm_step("n[1-2]", "2(x2)", 4, 1)
KUBERNETES = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "JOB_COMPLETION_INDEX": "0",
    "HOSTNAME": "train-0",
}

# environment; the name of the platform, the cluster
FOUND = {
    "nothing": ({}, None, {}),
    "TF_CONFIG": (TF_CONFIG, "TF_CONFIG", {"worker": ["a:1"]}),
    "TF_CONFIG in all of them": (
        TF_CONFIG | SAGEMAKER | OPEN_MPI | SLURM | KUBERNETES,
        "TF_CONFIG",
        {"worker": ["a:1"]},
    ),
    "SageMaker, which has mpirun": (
        SAGEMAKER | OPEN_MPI,
        "SageMaker",
        {"worker": ["algo-1:2223"]},
    ),
    "mpirun in sbatch": (
        OPEN_MPI | ALLOCATION | {"SLURM_PROCID": "0"},
        "MPI",
        {"worker": ["n1:8888", "n1:8889", "n2:8888", "n2:8889"]},
    ),
    "srun": (SLURM, "Slurm", {"worker": ["n1:8888", "n1:8889", "n2:8888", "n2:8889"]}),
    "sbatch without srun": ({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0"}, None, {}),
    "srun in a pod": (
        SLURM | KUBERNETES,
        "Slurm",
        {"worker": ["n1:8888", "n1:8889", "n2:8888", "n2:8889"]},
    ),
    "a pod that is no indexed job": ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None, {}),
}


@pytest.mark.parametrize("name", FOUND)
def test_the_platform_of_a_recorded_environment_is_found(name, setenv):
    environment, platform, cluster = FOUND[name]
    setenv(environment)
    present = [row.name for row in detection.PLATFORMS if row.is_present()]
    assert present[:1] == ([] if platform is None else [platform])
    assert detection.detect().cluster_spec() == ClusterSpec(cluster)


def test_an_indexed_job_of_kubernetes_is_found(setenv):
    setenv(KUBERNETES)
    present = [row for row in detection.PLATFORMS if row.is_present()]
    assert [row.name for row in present] == ["Kubernetes"]
    assert present[0].resolver is kubernetes.of_own_job


def test_a_platform_with_a_mistake_is_not_passed_over(setenv):
    setenv(SLURM | {"TF_CONFIG": "oops"})
    with pytest.raises(ClusterError, match="TF_CONFIG is not JSON"):
        detection.detect()
