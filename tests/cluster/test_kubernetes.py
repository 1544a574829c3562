"""Pods of a Kubernetes cluster, from a fake of its API over real HTTP and HTTPS."""

import re
import types

import pytest

from replicax.cluster import kubernetes
from replicax.cluster.kubernetes import KubernetesClusterResolver, KubernetesExecutableLocation
from replicax.cluster.kubernetes_api import KubernetesApi, Pod
from replicax.cluster.reply import Reply
from replicax.cluster.spec import ClusterSpec
from replicax.core.errors import ClusterError, ClusterPlatformError
from tests.cluster.fake_api import CERTIFICATE, serve
from tests.cluster.fake_kubernetes import pod, resolver_of, route

TOKEN = "s3cret-t0ken"


def test_pods_are_in_the_order_of_their_names():
    pods = [pod("train-b", "10.0.0.2"), pod("train-a", "10.0.0.9")]
    with serve(route("job-name=train", *pods)) as api:
        resolver = resolver_of(api, {"worker": ["job-name=train"]})
        spec = resolver.cluster_spec()
        assert (resolver.task_type, resolver.task_id, resolver.master()) == (None, None, "")
    assert spec == ClusterSpec({"worker": ["10.0.0.9:8470", "10.0.0.2:8470"]})


def test_pods_of_an_indexed_job_are_in_the_order_of_their_index(monkeypatch):
    pods = [pod(f"train-{i}-{'zyx'[i % 3]}", f"10.0.0.{i}", index=i) for i in (10, 2, 0, 1)]
    with serve(route("job-name=train", *pods)) as api:
        resolver = resolver_of(api, {"worker": ["job-name=train"]})
        expected = [f"10.0.0.{i}:8470" for i in (0, 1, 2, 10)]
        assert resolver.cluster_spec() == ClusterSpec({"worker": expected})
        monkeypatch.setenv("HOSTNAME", "train-2")
        assert (resolver.task_type, resolver.task_id) == ("worker", 2)
        assert resolver.master() == "grpc://10.0.0.2:8470"


def test_several_jobs_and_selectors_make_one_cluster(monkeypatch):
    routes = (
        route("job-name=a", pod("a-1", "10.0.0.1"))
        | route("job-name=b", pod("b-1", "10.0.0.2"))
        | route("role in (ps)", pod("p-1", "10.0.0.3"))
    )
    labels = {"worker": ["job-name=a", "job-name=b"], "ps": ["role in (ps)"]}
    monkeypatch.setenv("POD_NAME", "p-1")
    with serve(routes) as api:
        resolver = resolver_of(api, labels, tf_server_port=5000, rpc_layer=None)
        assert resolver.cluster_spec() == ClusterSpec(
            {"worker": ["10.0.0.1:5000", "10.0.0.2:5000"], "ps": ["10.0.0.3:5000"]}
        )
        assert (resolver.task_type, resolver.task_id) == ("ps", 0)
        resolver.task_type, resolver.task_id = "worker", 1
        assert resolver.master() == "10.0.0.2:5000"


def test_the_pods_are_asked_for_at_every_question():
    with serve({}) as api:
        resolver = resolver_of(api, {"worker": ["job-name=train"]})
        api.routes |= route("job-name=train", pod("a", "10.0.0.1"))
        assert resolver.cluster_spec() == ClusterSpec({"worker": ["10.0.0.1:8470"]})
        api.routes |= route("job-name=train", pod("a", "10.0.0.1"), pod("b", "10.0.0.2"))
        assert resolver.cluster_spec().num_tasks("worker") == 2


def test_pods_with_ipv6_addresses_get_brackets():
    with serve(route("job-name=train", pod("a", "fd00::1"))) as api:
        spec = resolver_of(api, {"worker": ["job-name=train"]}).cluster_spec()
    assert spec == ClusterSpec({"worker": ["[fd00::1]:8470"]})


@pytest.fixture
def account(tmp_path):
    for name, text in (("token", TOKEN), ("namespace", "training\n")):
        (tmp_path / name).write_text(text)
    (tmp_path / "ca.crt").write_bytes(CERTIFICATE.read_bytes())
    return tmp_path


def test_in_a_pod_its_account_is_used_over_https(account, monkeypatch):
    with serve(route("job-name=train", pod("a", "10.0.0.1")), with_tls=True) as api:
        host, port = api.host.split(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        client = KubernetesApi.in_cluster(str(account))
        resolver = KubernetesClusterResolver({"worker": ["job-name=train"]}, override_client=client)
        assert resolver.cluster_spec() == ClusterSpec({"worker": ["10.0.0.1:8470"]})
        (account / "token").write_text("another")  # Kubernetes renews tokens
        resolver.cluster_spec()
    sent = [request.headers["Authorization"] for request in api.requests]
    assert sent == [f"Bearer {TOKEN}", "Bearer another"]
    assert TOKEN not in repr(client)


def test_a_pod_without_an_account_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    with pytest.raises(ClusterPlatformError, match="automountServiceAccountToken: false"):
        KubernetesApi.in_cluster(str(tmp_path))
    (tmp_path / "namespace").write_text("training")
    assert KubernetesApi.in_cluster(str(tmp_path)).url == "https://[fd00::1]:443"


def test_outside_of_pods_the_program_says_so():
    with pytest.raises(ClusterPlatformError, match=r"SERVICE_HOST is not set\. Outside of one"):
        KubernetesClusterResolver()
    elsewhere = KubernetesExecutableLocation.OFF_CLUSTER
    KubernetesClusterResolver(executable_location=elsewhere)  # asks `kubectl proxy` later
    assert KubernetesApi().url == "http://127.0.0.1:8001"


def test_through_a_proxy_all_namespaces_are_searched_and_no_token_is_sent():
    with serve(route("job-name=train", pod("a", "10.0.0.1"), namespace=None)) as api:
        client = KubernetesApi(api.url)
        resolver = KubernetesClusterResolver({"worker": ["job-name=train"]}, override_client=client)
        assert resolver.cluster_spec() == ClusterSpec({"worker": ["10.0.0.1:8470"]})
    assert "Authorization" not in api.requests[0].headers


def test_a_client_of_the_kubernetes_package_can_be_used():
    def listed(label_selector):
        assert label_selector == "job-name=tensorflow"
        return types.SimpleNamespace(
            items=[
                types.SimpleNamespace(
                    metadata=types.SimpleNamespace(name="a"),
                    status=types.SimpleNamespace(phase="Running", pod_ip="10.0.0.1"),
                )
            ]
        )

    client = types.SimpleNamespace(list_pod_for_all_namespaces=listed)
    spec = KubernetesClusterResolver(override_client=client).cluster_spec()
    assert spec == ClusterSpec({"worker": ["10.0.0.1:8470"]})


FORBIDDEN = {"kind": "Status", "message": "pods is forbidden: User cannot list resource"}
ANSWERS = {
    "no pods": (
        (200, {"items": []}),
        "no pod has the labels 'job-name=train'. Correct job_to_label_mapping, or wait until the",
    ),
    "a null list": ((200, {"items": None}), "no pod has the labels 'job-name=train'."),
    "items that are no list": (
        (200, {"items": {"a": 1}}),
        'has "items": {"a": 1}; expected a list of objects.',
    ),
    "an index that is no number": (
        (200, {"items": [pod("a", "10.0.0.1", index="first")]}),
        '"batch.kubernetes.io/job-completion-index": "first"; expected a whole number.',
    ),
    "an index of 5,000 digits": (
        (200, {"items": [pod("a", "10.0.0.1", index="9" * 5000)]}),
        f'"{"9" * 59}...; expected a whole number.',
    ),
    "an address with a port": (
        (200, {"items": [pod("a", "10.0.0.1:80")]}),
        'has "podIP": "10.0.0.1:80"; expected an IP address.',
    ),
    "nested without end": (
        (200, '{"items": ' + "[" * 200_000),
        "' is nested deeper than 100.",
    ),
    "pending": (
        (200, {"items": [pod("a", "10.0.0.1"), pod("b", "", "Pending")]}),
        "the pod 'b' does not run, its phase is 'Pending'. Wait until all pods with the labels "
        "'job-name=train' run.",
    ),
    "without an address": (
        (200, {"items": [pod("a", "")]}),
        "the pod 'a' does not run, its phase is 'Running'.",
    ),
    "forbidden": (
        (403, FORBIDDEN),
        "answered 403 Forbidden: pods is forbidden: User cannot list resource Give the service "
        "account of the pod a role that may list pods in 'training'.",
    ),
    "unauthorized": ((401, {"message": "Unauthorized"}), "answered 401 Unauthorized: Unauthorized"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_makes_no_cluster_says_why(name):
    answer, message = ANSWERS[name]
    routes = dict.fromkeys(route("job-name=train"), answer)
    with (
        serve(routes) as api,
        pytest.raises(ClusterPlatformError, match=re.escape(message)),
    ):
        resolver_of(api, {"worker": ["job-name=train"]}).cluster_spec()


MISTAKES = {
    "labels as text": (
        {"job_to_label_mapping": {"worker": "job-name=train"}},
        "the labels of job 'worker' are 'job-name=train'; expected a list of label selectors",
    ),
    "a location that is none": (
        {"executable_location": 0},
        "executable_location is 0; expected one of ['KubernetesExecutableLocation.WITHIN_CLUSTER'",
    ),
    "a client that is none": (
        {"override_client": object()},
        "override_client is of type object; expected a KubernetesApi, or an object with",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_wrong_arguments_are_refused(name):
    arguments, message = MISTAKES[name]
    with pytest.raises(ClusterError, match=re.escape(message)):
        KubernetesClusterResolver(**arguments)


def test_a_pod_of_an_indexed_job_knows_its_job(setenv, monkeypatch):
    assert not kubernetes.is_present()
    setenv({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "my-train-3"})
    assert not kubernetes.is_present()
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "3")
    assert kubernetes.is_present()
    monkeypatch.setenv("HOSTNAME", "train-abc")
    assert not kubernetes.is_present()
    with pytest.raises(ClusterPlatformError, match="HOSTNAME does not end in JOB_COMPLETION_INDEX"):
        kubernetes.of_own_job()


def test_a_pod_that_the_api_hardly_describes_is_not_running():
    assert Pod._from_reply(Reply({}, "the pod")) == Pod("", "unknown", "")
