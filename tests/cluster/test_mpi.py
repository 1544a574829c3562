"""MPI jobs, from the environments that launchers and schedulers make."""

import re

import pytest

from replicax.cluster.mpi import MPIClusterResolver
from replicax.cluster.spec import ClusterSpec
from replicax.core.errors import ClusterError, ClusterPlatformError
from tests.cluster.recorded import ALLOCATION, MPICH, MVAPICH, OPEN_MPI

HELPERS = {"SLURM_STEP_NODELIST": "n2", "SLURM_STEP_TASKS_PER_NODE": "1"}
FOUR = ["n1:8888", "n1:8889", "n2:8888", "n2:8889"]

# environment, arguments, addresses, rank
JOBS = {
    "Open MPI, hosts by rank": (OPEN_MPI, {"hosts": ["n1", "n1", "n2", "n2"]}, FOUR, 1),
    "Open MPI, ranks by host": (OPEN_MPI, {"hosts": {"n1": 2, "n2": 2}}, FOUR, 1),
    "Open MPI in sbatch": (OPEN_MPI | ALLOCATION, {}, FOUR, 1),
    "Open MPI under the step of its helpers": (OPEN_MPI | ALLOCATION | HELPERS, {}, FOUR, 1),
    "Open MPI 5, all here": (
        OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_MCA_orte_hnp_uri": ""},
        {"port_base": 5000},
        ["localhost:5000", "localhost:5001", "localhost:5002", "localhost:5003"],
        1,
    ),
    "MPICH": (MPICH, {"hosts": {"n1": 2, "n2": 2}}, FOUR, 3),
    "MPICH by srun": (
        MPICH | {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"},
        {},
        FOUR,
        3,
    ),
    "MVAPICH": (MVAPICH, {"hosts": ["a", "b"]}, ["a:8888", "b:8888"], 0),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_recorded_job_is_resolved(name, setenv):
    environment, arguments, addresses, rank = JOBS[name]
    setenv(environment)
    resolver = MPIClusterResolver(**arguments)
    assert resolver.cluster_spec() == ClusterSpec({"worker": addresses})
    assert (resolver.task_type, resolver.task_id) == ("worker", rank)
    assert resolver.master() == addresses[rank]


@pytest.mark.parametrize("variable", ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE"])
def test_hosts_are_read_from_the_file_of_the_scheduler(variable, tmp_path, setenv):
    path = tmp_path / "hosts"
    path.write_text("n1\nn1\nn2\nn2\n")
    setenv(MPICH | {variable: str(path)})
    assert MPIClusterResolver().cluster_spec() == ClusterSpec({"worker": FOUR})
    path.unlink()
    with pytest.raises(ClusterPlatformError, match=f"of {variable} cannot be read: No such file"):
        MPIClusterResolver()


MISTAKES = {
    "no launcher": (
        {},
        {},
        ClusterPlatformError,
        "this process was not started by an MPI launcher: none of these is set: "
        "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE (Open MPI); ",
    ),
    "hosts unknown": (
        MPICH,
        {},
        ClusterPlatformError,
        "MPICH, Intel MPI or another PMI started 4 ranks and does not say on which hosts, and "
        "there is no Slurm, PBS or LSF to ask. Pass hosts=, the host of each rank or a dict from "
        "host to number of ranks.",
    ),
    "too few hosts": (
        MPICH,
        {"hosts": ["a", "b"]},
        ClusterError,
        "hosts has 2 places, ['a', 'b'], for 4 ranks. Pass hosts=, the host of each rank or a dict",
    ),
    "another allocation": (
        OPEN_MPI | ALLOCATION | {"OMPI_COMM_WORLD_SIZE": "3"},
        {},
        ClusterError,
        "Slurm has 4 places, ['n1', 'n1', 'n2', 'n2'], for 3 ranks.",
    ),
    "a rank that is no number": (
        MPICH | {"PMI_RANK": "one"},
        {},
        ClusterPlatformError,
        "the environment variable PMI_RANK is 'one'; expected a whole number. Start the program",
    ),
    "an empty rank": (
        MPICH | {"PMI_RANK": ""},
        {},
        ClusterPlatformError,
        "the environment variable PMI_RANK is empty. Start the program with mpirun or mpiexec.",
    ),
    "a rank beyond the size": (
        MPICH | {"PMI_RANK": "4"},
        {},
        ClusterPlatformError,
        "says PMI_RANK=4 and PMI_SIZE=4; expected a rank below the size.",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_job_that_cannot_be_resolved_says_why(name, setenv):
    environment, arguments, error, message = MISTAKES[name]
    setenv(environment)
    with pytest.raises(error, match=re.escape(message)):
        MPIClusterResolver(**arguments)
