"""What holds for every resolver: a row makes worker 1 of two, and is tested without a new test."""

import contextlib

import pytest

import replicax as rx
from replicax.cluster import roles
from tests.cluster import fake_gce, fake_kubernetes
from tests.cluster.fake_api import serve
from tests.cluster.recorded import MPICH, sagemaker_job, slurm_step
from tests.cluster.tf_config_mistakes import config

resolvers = rx.cluster_resolver
WORKERS = {"worker": ["a:1", "b:1"]}
TASK = {"type": "worker", "index": 1}


@contextlib.contextmanager
def from_kubernetes(setenv):
    setenv({"POD_NAME": "train-1"})
    pods = [fake_kubernetes.pod(f"train-{i}", f"10.0.0.{i}") for i in range(2)]
    with serve(fake_kubernetes.route("job-name=train", *pods)) as api:
        yield fake_kubernetes.resolver_of(api, {"worker": ["job-name=train"]})


@contextlib.contextmanager
def from_gce(setenv):
    machines = fake_gce.machine("m1", "10.0.0.1") | fake_gce.machine("m2", "10.0.0.2")
    with serve(fake_gce.group("m1", "m2") | machines) as api:
        yield fake_gce.resolver_of(api, task_id=1)


def from_environment(make, environment):
    @contextlib.contextmanager
    def made(setenv):
        setenv(environment)
        yield make()

    return made


def simple():
    return resolvers.SimpleClusterResolver(WORKERS, task_type="worker", task_id=1)


ROWS = {
    "GCE": from_gce,
    "Kubernetes": from_kubernetes,
    "MPI": from_environment(
        lambda: resolvers.MPIClusterResolver(["n1", "n2"]),
        MPICH | {"PMI_RANK": "1", "PMI_SIZE": "2"},
    ),
    "SageMaker": from_environment(
        resolvers.SageMakerClusterResolver, sagemaker_job('["algo-1", "algo-2"]', "algo-2")
    ),
    "Simple": from_environment(simple, {}),
    "Slurm": from_environment(resolvers.SlurmClusterResolver, slurm_step("n[1-2]", "1(x2)", 2, 1)),
    "TFConfig": from_environment(
        resolvers.TFConfigClusterResolver, {"TF_CONFIG": config(WORKERS, TASK)}
    ),
    "Union": from_environment(lambda: resolvers.UnionResolver(simple()), {}),
}


@pytest.fixture(params=ROWS)
def resolver(request, setenv):
    with ROWS[request.param](setenv) as made:
        yield made


def test_every_resolver_but_those_of_tpus_and_ray_has_a_row():
    classes = {name for name in resolvers.__all__ if name.endswith("Resolver")}
    named = {name.removesuffix("Resolver").removesuffix("Cluster") for name in classes}
    assert named - {"", "Ray", "TPU"} == set(ROWS)  # tests/ray_cluster has that of Ray


def test_the_cluster_can_be_trained_on_and_has_the_task(resolver):
    spec = resolver.cluster_spec()
    assert isinstance(spec, resolvers.ClusterSpec)
    roles.check_cluster(spec)
    assert spec.num_tasks("worker") == 2
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert roles.id_in_cluster(spec, resolver.task_type, resolver.task_id) == 1
    assert not roles.is_chief(spec, resolver.task_type, resolver.task_id)


def test_every_task_has_a_master_with_the_scheme_that_is_asked_for(resolver):
    for index in range(2):
        address = resolver.cluster_spec().task_address("worker", index)
        assert resolver.master("worker", index, "http") == f"http://{address}"
        assert resolver.master("worker", index, "").endswith(address)


def test_what_is_set_from_outside_wins(resolver):
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 0, "https"
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 0, "https")
    address = resolver.cluster_spec().task_address("worker", 0)
    assert resolver.master("worker", 0) == f"https://{address}"


def test_a_cpu_has_no_accelerators(resolver):
    assert resolver.num_accelerators() == {}
    assert resolver.environment in ("", None)
