"""Whatever a platform says, there is a cluster, or one of two errors that shows what was said."""

import contextlib
import json
import random
from collections.abc import Callable, Iterator

import pytest

from replicax.cluster import tpu
from replicax.cluster.mpi import MPIClusterResolver
from replicax.cluster.sagemaker import SageMakerClusterResolver
from replicax.cluster.slurm import SlurmClusterResolver
from replicax.cluster.spec import ClusterSpec
from replicax.cluster.tf_config_format import parse_tf_config
from replicax.core.errors import ClusterError, ClusterPlatformError
from tests.cluster import fake_gce, fake_kubernetes, recorded
from tests.cluster.fake_api import serve
from tests.cluster.mutations import mutated_json, mutated_text
from tests.tiers import examples

SEED = 17
MOST_OF_A_MESSAGE = 4_000


@contextlib.contextmanager
def only_our_errors(received: object) -> Iterator[list[str]]:
    """Passes over our errors, whose messages can be shown; any other one fails with its cause."""
    said: list[str] = []
    try:
        yield said
    except (ClusterError, ClusterPlatformError) as error:
        message = str(error)
        assert message.encode(), received
        assert len(message) < MOST_OF_A_MESSAGE, (message[:200], received)
        said.append(message)
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} for {received!r:.500}") from error


def replies(count: int, value: object) -> Iterator[str]:
    rng = random.Random(SEED)
    return (mutated_json(rng, value) for _ in range(examples(count)))


def check_all(count: int, value: object, ask: Callable[[str], object]) -> None:
    """Asks with each mutated reply; some of them must be refused, or nothing was tried."""
    num_refused = 0
    for text in replies(count, value):
        with only_our_errors(text) as said:
            ask(text)
        num_refused += len(said)
    assert num_refused > 0


def test_kubernetes():
    pods = [fake_kubernetes.pod(f"train-{i}", f"10.0.0.{i}", index=i) for i in range(3)]
    ((path, (_, listed)),) = fake_kubernetes.route("job-name=train", *pods).items()
    with serve({}) as api:
        resolver = fake_kubernetes.resolver_of(api, {"worker": ["job-name=train"]})

        def ask(text: str) -> None:
            api.routes[path] = (200, text)
            spec = resolver.cluster_spec()
            assert isinstance(spec, ClusterSpec)
            repr(spec).encode()

        check_all(400, listed, ask)


def test_compute_engine():
    groups, (name, (_, described)) = (
        fake_gce.group("a", "b"),
        *fake_gce.machine("a", "10.0.0.1").items(),
    )
    ((path, (_, listed)),) = groups.items()
    with serve({**fake_gce.machine("b", "10.0.0.2")}) as api:
        resolver = fake_gce.resolver_of(api)

        def ask(text: str) -> None:
            both = json.loads(text) if is_pair(text) else None
            api.routes[path] = (200, text if both is None else json.dumps(both[0]))
            api.routes[name] = (200, text if both is None else json.dumps(both[1]))
            repr(resolver.cluster_spec()).encode()

        check_all(400, [listed, described], ask)


def is_pair(text: str) -> bool:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, list) and len(found) == 2


def test_the_token_of_the_metadata_server(setenv):
    path = "/computeMetadata/v1/instance/service-accounts/default/token"
    with serve({}) as api:
        setenv({"GCE_METADATA_HOST": api.host})
        resolver = fake_gce.resolver_of(api, credentials="default")

        def ask(text: str) -> None:
            api.routes[path] = (200, text)
            resolver.cluster_spec()

        check_all(200, {"access_token": "ya29.s3cret", "expires_in": 3600}, ask)


def test_the_hosts_of_a_tpu_slice(setenv):
    rng = random.Random(SEED)
    attributes = "/computeMetadata/v1/instance/attributes/"
    with serve({}) as api:
        setenv({"GCE_METADATA_HOST": api.host})
        for _ in range(examples(200)):
            hosts = mutated_text(rng, "t1v-0:0:10.0.0.1,t1v-1:1:10.0.0.2")
            place = mutated_text(rng, "1")
            api.routes[f"{attributes}worker-network-endpoints"] = (200, surrogates(hosts))
            api.routes[f"{attributes}agent-worker-number"] = (200, surrogates(place))
            with only_our_errors((hosts, place)):
                found, number = tpu._metadata_slice()
                assert isinstance(number, int)
                assert found


def test_an_error_of_an_api_that_says_anything():
    rng = random.Random(SEED)
    ((path, _),) = fake_kubernetes.route("job-name=train").items()
    with serve({}) as api:
        resolver = fake_kubernetes.resolver_of(api, {"worker": ["job-name=train"]})
        for _ in range(examples(200)):
            text = mutated_json(rng, {"error": {"message": "forbidden", "code": 403}})
            api.routes[path] = (403, text)
            with pytest.raises(ClusterPlatformError, match="answered 403 Forbidden"):
                resolver.cluster_spec()


TF_CONFIG = {
    "cluster": {"chief": ["a:1"], "worker": {"0": "b:1", "1": "c:1"}, "ps": ["d:1"]},
    "task": {"type": "worker", "index": "1"},
    "rpc_layer": "grpc",
}


def test_tf_config():
    check_all(5_000, TF_CONFIG, parse_tf_config)


def surrogates(data: bytes) -> str:
    """Bytes as the environment has them."""
    return data.replace(b"\0", b"").decode("utf-8", "surrogateescape")


def mutated_variables(rng: random.Random, variables: dict[str, str]) -> dict[str, str]:
    changed = rng.sample(sorted(variables), rng.randint(1, min(3, len(variables))))
    return variables | {name: surrogates(mutated_text(rng, variables[name])) for name in changed}


ENVIRONMENTS = {
    "Slurm": (
        recorded.slurm_step("n[1-2],m5", "2(x2),1", 5, 3, SLURM_GPUS_ON_NODE="4"),
        SlurmClusterResolver,
    ),
    "Open MPI": (recorded.OPEN_MPI | recorded.ALLOCATION, MPIClusterResolver),
    "MPICH on this host": (recorded.MPICH | {"MPI_LOCALNRANKS": "4"}, MPIClusterResolver),
    "SageMaker": (
        recorded.sagemaker_job('["algo-1", "algo-2"]', "algo-2"),
        SageMakerClusterResolver,
    ),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_environment(name, setenv):
    variables, make = ENVIRONMENTS[name]
    rng = random.Random(SEED)
    for _ in range(examples(2_000)):
        mutated = mutated_variables(rng, variables)
        setenv(mutated)
        with only_our_errors(mutated):
            resolver = make()
            repr(resolver.cluster_spec())
            assert resolver.task_type == "worker"
            assert isinstance(resolver.task_id, int)


def test_a_host_file(tmp_path, setenv):
    rng = random.Random(SEED)
    path = tmp_path / "hosts"
    setenv(recorded.MPICH | {"PBS_NODEFILE": str(path)})
    for _ in range(examples(1_000)):
        content = mutated_text(rng, "n1\nn1\nn2\nn2\n")
        path.write_bytes(content)
        with only_our_errors(content):
            MPIClusterResolver().cluster_spec()
