"""Slurm job steps, from the environments that ``srun`` makes."""

import ast
import os
import re

import pytest

from replicax.cluster.slurm import SlurmClusterResolver
from replicax.cluster.spec import ClusterSpec
from replicax.core.errors import ClusterError, ClusterPlatformError
from tests.backend.fresh_process import run_fresh
from tests.cluster.recorded import slurm_step

TWO_BY_TWO = ["n1:8888", "n1:8889", "n2:8888", "n2:8889"]

# environment, arguments, cluster, task
STEPS = {
    "one task": (slurm_step("n1", "1", 1, 0), {}, {"worker": ["n1:8888"]}, ("worker", 0)),
    "two nodes": (
        slurm_step("n[1-2]", "1(x2)", 2, 1, SLURMD_NODENAME="n2"),
        {},
        {"worker": ["n1:8888", "n2:8888"]},
        ("worker", 1),
    ),
    "two tasks on each node": (
        slurm_step("n[1-2]", "2(x2)", 4, 2, SLURMD_NODENAME="n2"),
        {},
        {"worker": TWO_BY_TWO},
        ("worker", 2),
    ),
    "cyclic": (
        slurm_step(
            "n[1-2]", "2(x2)", 4, 2, 1, SLURMD_NODENAME="n1", SLURM_DISTRIBUTION="cyclic:block"
        ),
        {},
        {"worker": ["n1:8888", "n2:8888", "n1:8889", "n2:8889"]},
        ("worker", 2),
    ),
    "ten nodes, in Slurm's order": (
        slurm_step("n[1-10]", "1(x10)", 10, 9, SLURMD_NODENAME="n10"),
        {},
        {"worker": [f"n{i}:8888" for i in range(1, 11)]},
        ("worker", 9),
    ),
    "uneven": (
        slurm_step("n[1-2]", "2,1", 3, 2, SLURMD_NODENAME="n2"),
        {"port_base": 15000},
        {"worker": ["n1:15000", "n1:15001", "n2:15000"]},
        ("worker", 2),
    ),
    "jobs, in the order of their names": (
        slurm_step("n[1-2]", "2(x2)", 4, 1),
        {"jobs": {"worker": 3, "ps": 1}},
        {"ps": ["n1:8888"], "worker": ["n1:8889", "n2:8888", "n2:8889"]},
        ("worker", 0),
    ),
    "the first of the jobs": (
        slurm_step("n[1-2]", "2(x2)", 4, 0),
        {"jobs": {"worker": 3, "chief": 1}},
        {"chief": ["n1:8888"], "worker": ["n1:8889", "n2:8888", "n2:8889"]},
        ("chief", 0),
    ),
    "one number for all nodes": (
        slurm_step("n[1-2]", "wrong", 4, 3, 1),
        {"tasks_per_node": 2},
        {"worker": TWO_BY_TWO},
        ("worker", 3),
    ),
    "numbers by node": (
        slurm_step("wrong[", "wrong", 3, 1),
        {"tasks_per_node": {"x": 1, "y": 2}},
        {"worker": ["x:8888", "y:8888", "y:8889"]},
        ("worker", 1),
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_recorded_step_is_resolved(name, setenv):
    environment, arguments, cluster, task = STEPS[name]
    setenv(environment)
    resolver = SlurmClusterResolver(**arguments)
    assert resolver.get_task_info() == task
    assert resolver.cluster_spec() == ClusterSpec(cluster)
    assert resolver.master() == f"grpc://{cluster[task[0]][task[1]]}"
    assert resolver.num_accelerators() == {}


MISTAKES = {
    "not in Slurm": (
        {},
        {},
        ClusterPlatformError,
        "this process is not in a Slurm job step: SLURM_JOB_ID, SLURM_STEP_NODELIST, SLURM_NTASKS, "
        "SLURM_PROCID, SLURM_LOCALID not set. Start the program with srun, inside sbatch or",
    ),
    "in sbatch without srun": (
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
        {},
        ClusterPlatformError,
        "this process is not in a Slurm job step: SLURM_STEP_NODELIST not set. Start the program",
    ),
    "a rank that is no number": (
        slurm_step("n1", "1", 1, "x"),
        {},
        ClusterPlatformError,
        "the environment variable SLURM_PROCID is 'x'; expected a whole number.",
    ),
    "a rank of 5,000 digits": (
        slurm_step("n1", "1", 1, "9" * 5000),
        {},
        ClusterError,
        f"the environment variable SLURM_PROCID is '{'9' * 60}'; expected a whole number.",
    ),
    "more hosts than there are": (
        slurm_step("n[0-50000000]", "1", 1, 0),
        {},
        ClusterError,
        "'n[0-50000000]' lists 50000001 hosts or more; a cluster has at most 100000 tasks.",
    ),
    "a bad node list": (
        slurm_step("n[1-", "1", 1, 0),
        {},
        ClusterError,
        "'n[1-' is no list of hosts",
    ),
    "fewer tasks than the jobs have": (
        slurm_step("n[1-2]", "1(x2)", 2, 0),
        {"jobs": {"worker": 3}},
        ClusterError,
        "the jobs {'worker': 3} have 3 tasks and Slurm has 2: {'n1': 1, 'n2': 1}. Correct jobs, or "
        "start as many tasks: srun --ntasks=3.",
    ),
    "another host than the order says": (
        slurm_step("n[1-2]", "2(x2)", 4, 1, SLURMD_NODENAME="n2"),
        {},
        ClusterError,
        "task 1 of the step runs on 'n2', but in the order of the node list it would be on 'n1'. "
        "Start the step with srun --distribution=block.",
    ),
    "a rank beyond the tasks": (
        slurm_step("n1", "1", 1, 7),
        {},
        ClusterError,
        "this is Slurm's task 7, and there are 1 tasks.",
    ),
    "too many GPUs": (
        slurm_step("n1", "2", 2, 0),
        {"gpus_per_node": 3, "gpus_per_task": 2},
        ClusterError,
        "2 tasks of a node with 2 GPUs each need 4, and the node has 3. Lower gpus_per_task, or",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_step_that_cannot_be_resolved_says_why(name, setenv):
    environment, arguments, error, message = MISTAKES[name]
    setenv(environment)
    with pytest.raises(error, match=re.escape(message)):
        SlurmClusterResolver(**arguments)


# environment, arguments; GPUs of a task, and what the task sees after cluster_spec()
GPUS = {
    "a node's GPUs are divided": (
        {"SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "0,1,2,3"},
        {},
        (2, "2,3"),
    ),
    "the node's names are kept": (
        {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"},
        {},
        (1, "GPU-b"),
    ),
    "Slurm has divided them": (
        {"SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "1"},
        {},
        (1, "1"),
    ),
    "as many as asked for": (
        {"CUDA_VISIBLE_DEVICES": "0,1,2,3"},
        {"gpus_per_task": 1},
        (1, "1"),
    ),
    "left alone": ({"CUDA_VISIBLE_DEVICES": "0,1"}, {"auto_set_gpu": False}, (1, "0,1")),
    "none": ({"CUDA_VISIBLE_DEVICES": ""}, {}, (0, "")),
    "fewer than tasks": ({"CUDA_VISIBLE_DEVICES": "0"}, {}, (0, "0")),
}


def test_the_gpus_of_a_task_are_set_before_jax_starts():
    rows = {name: row[:2] for name, row in GPUS.items()}
    printed = run_fresh(
        f"""
        import os
        from replicax.cluster.slurm import SlurmClusterResolver
        found = {{}}
        for name, (environment, arguments) in {rows!r}.items():
            os.environ.pop("SLURM_GPUS_ON_NODE", None)
            os.environ.update(environment)
            resolver = SlurmClusterResolver(**arguments)
            resolver.cluster_spec()
            resolver.cluster_spec()
            count = resolver.num_accelerators().get("GPU", 0)
            found[name] = count, os.environ["CUDA_VISIBLE_DEVICES"]
        print(found)
        """,
        **slurm_step("n[1-2]", "2(x2)", 4, 3, 1),
    )
    assert ast.literal_eval(printed) == {name: row[2] for name, row in GPUS.items()}


def test_the_gpus_are_left_alone_once_jax_runs(setenv):
    setenv(slurm_step("n1", "2", 2, 0) | {"CUDA_VISIBLE_DEVICES": "0,1"})
    SlurmClusterResolver().cluster_spec()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
