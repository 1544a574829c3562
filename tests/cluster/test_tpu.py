"""TPU slices from recorded environments, and what happens where there is no TPU."""

import ast
import contextlib

import jax
import pytest

from replicax.backend.topology import Topology
from replicax.cluster.spec import ClusterSpec
from replicax.cluster.tpu import TPUClusterResolver, TPUSystemMetadata
from replicax.core import notices
from tests.backend.fresh_process import run_fresh
from tests.cluster.fake_api import serve

ATTRIBUTES = "/computeMetadata/v1/instance/attributes"

# attributes of the metadata server, environment; the cluster and the task, or the error
SLICES = {
    "GKE": (
        {},
        {"TPU_WORKER_HOSTNAMES": "t-0.svc,t-1.svc", "TPU_WORKER_ID": "1"},
        ({"worker": ["t-0.svc:8482", "t-1.svc:8482"]}, ("worker", 1), "t-1.svc:8482", True),
    ),
    "GKE, with ports": (
        {},
        {"TPU_PROCESS_ADDRESSES": "t-0:8471,t-1:8471", "TPU_WORKER_ID": "0"},
        ({"worker": ["t-0:8482", "t-1:8482"]}, ("worker", 0), "t-0:8482", True),
    ),
    "GKE, one host": (
        {},
        {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"},
        ({}, ("worker", 0), "", False),
    ),
    "metadata with names": (
        {"worker-network-endpoints": "w-0,w-1", "agent-worker-number": "1"},
        {},
        ({"worker": ["w-0:8482", "w-1:8482"]}, ("worker", 1), "w-1:8482", True),
    ),
    "metadata with triples": (
        {"worker-network-endpoints": "a:1:10.0.0.1,b:2:10.0.0.2", "agent-worker-number": "0"},
        {},
        ({"worker": ["10.0.0.1:8482", "10.0.0.2:8482"]}, ("worker", 0), "10.0.0.1:8482", True),
    ),
    "metadata with one host": (
        {"worker-network-endpoints": "w-0", "agent-worker-number": "0"},
        {},
        ({}, ("worker", 0), "", False),
    ),
    "metadata without a slice": ({}, {}, ({}, ("worker", 0), "", False)),
    "metadata not to be asked": (
        {"worker-network-endpoints": "w-0,w-1", "agent-worker-number": "1"},
        {"TPU_SKIP_MDS_QUERY": "1"},
        ({}, ("worker", 0), "", False),
    ),
    "GKE, a place that is no number": (
        {},
        {"TPU_WORKER_HOSTNAMES": "t-0.svc,t-1.svc", "TPU_WORKER_ID": "x"},
        "the environment variable TPU_WORKER_ID is 'x'; expected a whole number. GKE sets it on "
        "the hosts of a TPU slice.",
    ),
    "GKE, a place beyond the hosts": (
        {},
        {"TPU_WORKER_HOSTNAMES": "t-0.svc,t-1.svc", "TPU_WORKER_ID": "2"},
        "this is host 2 of the TPU slice, which has 2: 't-0.svc,t-1.svc'.",
    ),
    "metadata with a place that is no number": (
        {"worker-network-endpoints": "w-0,w-1", "agent-worker-number": "one"},
        {},
        "the metadata server says agent-worker-number is 'one'; expected a whole number.",
    ),
    "several slices": (
        {},
        {"MEGASCALE_NUM_SLICES": "2"},
        "MEGASCALE_NUM_SLICES is 2: of several TPU slices no host knows the others' addresses. "
        "List them in TF_CONFIG, or in a SimpleClusterResolver.",
    ),
}

PROGRAM = """
import os, sys
import jax
from replicax.cluster.tpu import TPUClusterResolver, is_slice_present
from replicax.core.errors import ClusterPlatformError

os.environ.pop("TPU_SKIP_MDS_QUERY", None)  # set by JAX, which did not really see a chip

def ask():
    resolver = TPUClusterResolver(tpu="my-tpu")
    task = resolver.task_type, resolver.task_id
    return resolver.cluster_spec().as_dict(), task, resolver.master(), is_slice_present()

found = {}
for name, environment in ROWS.items():
    os.environ.update(environment)
    try:
        found[name] = ask()
    except ClusterPlatformError as error:
        found[name] = str(error)
    for variable in environment:
        del os.environ[variable]
print(found)
"""


def test_the_hosts_of_recorded_slices_are_found():
    with contextlib.ExitStack() as servers:
        rows = {}
        for name, (attributes, environment, _) in SLICES.items():
            routes = {f"{ATTRIBUTES}/{key}": (200, value) for key, value in attributes.items()}
            metadata = servers.enter_context(serve(routes))
            rows[name] = environment | {"GCE_METADATA_IP": metadata.host}
        # Lets JAX believe that it saw TPU chips; the CPU is still what it runs on.
        printed = run_fresh(PROGRAM.replace("ROWS", repr(rows)), JAX_FORCE_TPU_INIT="1")
    assert ast.literal_eval(printed) == {name: row[2] for name, row in SLICES.items()}


def test_virtual_devices_can_be_called_tpus():
    printed = run_fresh(
        """
        import warnings
        warnings.simplefilter("error")
        import replicax as rx
        rx.set_virtual_devices(4, kind="TPU")
        resolver = rx.cluster_resolver.TPUClusterResolver(tpu="")
        print(resolver.num_accelerators())
        """
    )
    assert printed.strip() == "{'TPU': 4}"


@pytest.fixture
def unnoticed():
    keys = [("no TPU", name) for name in ("", "my-tpu")]
    for key in keys:
        notices.forget(key)
    yield
    for key in keys:
        notices.forget(key)


def test_without_a_tpu_the_devices_of_jax_stand_for_it_and_that_is_said_once(unnoticed):
    message = "There is no TPU on this machine: the devices that JAX has here stand for it. To use"
    with pytest.warns(notices.ReplicaxWarning, match=message) as warned:
        resolver = TPUClusterResolver(tpu="")
        TPUClusterResolver()
        TPUClusterResolver.connect("")
    assert len(warned) == 1
    assert warned[0].filename == __file__
    assert resolver.cluster_spec() == ClusterSpec({})
    assert (resolver.task_type, resolver.task_id) == ("worker", 0)
    assert resolver.get_master() == resolver.master("worker", 0) == ""
    assert resolver.num_accelerators() == {"TPU": 8}
    assert resolver.environment == ""
    assert resolver.get_coordination_service_leader() == "/job:worker/task:0"
    devices = tuple(jax.devices())
    assert resolver.get_tpu_system_metadata() == TPUSystemMetadata(8, 1, 8, None, devices)


def test_the_name_of_a_tpu_that_is_not_here_is_shown(unnoticed):
    with pytest.warns(notices.ReplicaxWarning, match="There is no TPU 'my-tpu' on this machine"):
        resolver = TPUClusterResolver("my-tpu", job_name="tpu_worker")
    assert resolver.get_job_name() == "tpu_worker"


@pytest.mark.filterwarnings("ignore:There is no TPU")
def test_a_topology_from_elsewhere_is_part_of_the_metadata():
    resolver = TPUClusterResolver("")
    assert resolver.get_tpu_system_metadata().topology is None
    grid = Topology(mesh_shape=[1, 1, 1, 2], device_coordinates=[[[0, 0, 0, 0], [0, 0, 0, 1]]])
    resolver.set_tpu_topology(grid.serialized())
    found = resolver.get_tpu_system_metadata().topology
    assert found is not None
    assert (found.num_tasks, found.num_tpus_per_task) == (1, 2)
    for wrong in (b"\xff", "{}", "text", 3):
        with pytest.raises(ValueError, match="which is no serialized topology"):
            resolver.set_tpu_topology(wrong)  # pyright: ignore


@pytest.mark.filterwarnings("ignore:There is no TPU")
def test_there_are_no_embedding_devices():
    feature = TPUClusterResolver("").tpu_hardware_feature
    assert feature.embedding_feature is feature.EmbeddingFeature.UNSUPPORTED
    assert feature.num_embedding_devices_per_chip == 0
