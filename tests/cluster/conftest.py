"""Every test of a resolver starts outside all clusters, wherever the tests themselves run."""

import os

import pytest

PREFIXES = ("SLURM", "OMPI_", "MV2_", "PMI_", "MPI_", "KUBERNETES_", "GCE_", "SM_", "TPU_")
NAMES = (
    *("TF_CONFIG", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "JOB_COMPLETION_INDEX", "HOSTNAME"),
    *("POD_NAME", "CUDA_VISIBLE_DEVICES", "MEGASCALE_NUM_SLICES"),
)


@pytest.fixture(autouse=True)
def outside_of_clusters(monkeypatch):
    for name in list(os.environ):
        if name.startswith(PREFIXES) or name in NAMES:
            monkeypatch.delenv(name)


@pytest.fixture
def setenv(monkeypatch):
    """Sets the variables of a recorded environment."""

    def set_all(environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return set_all
