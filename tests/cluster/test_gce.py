"""Instance groups of Compute Engine, from fakes of its API and its metadata server."""

import re

import pytest

from replicax.cluster.gce import GCEClusterResolver
from replicax.cluster.spec import ClusterSpec
from replicax.core.errors import ClusterError, ClusterPlatformError
from tests.cluster.fake_api import serve
from tests.cluster.fake_gce import LIST, TOKEN, group, instance, machine, resolver_of

TOKEN_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"


def test_the_machines_of_a_group_are_in_the_order_of_their_addresses():
    routes = group("m1", "m2") | machine("m1", "10.0.0.9") | machine("m2", "10.0.0.4")
    with serve(routes) as api:
        resolver = resolver_of(api, task_id=1)
        assert resolver.cluster_spec() == ClusterSpec(
            {"worker": ["10.0.0.4:8470", "10.0.0.9:8470"]}
        )
        assert (resolver.task_type, resolver.task_id) == ("worker", 1)
        assert resolver.master() == "grpc://10.0.0.9:8470"
        assert resolver.master(task_id=0, rpc_layer="") == "10.0.0.4:8470"
    listing = api.requests[0]
    assert (listing.method, listing.body) == ("POST", {"instanceState": "RUNNING"})
    assert {request.headers["Authorization"] for request in api.requests} == {f"Bearer {TOKEN}"}


def test_all_pages_of_a_large_group_are_read():
    routes = machine("m1", "10.0.0.1") | machine("m2", "10.0.0.2") | machine("m3", "10.0.0.3")
    routes |= {
        LIST: (200, {"items": [instance("m1"), instance("m2")], "nextPageToken": "a b"}),
        f"{LIST}&pageToken=a+b": (200, {"items": [instance("m3")]}),
    }
    with serve(routes) as api:
        assert resolver_of(api, task_type="chief").cluster_spec().num_tasks("chief") == 3


def test_the_token_comes_from_the_metadata_server(monkeypatch):
    token = {"access_token": TOKEN, "expires_in": 3599, "token_type": "Bearer"}
    with (
        serve({TOKEN_PATH: (200, token)}) as metadata,
        serve(group("m1") | machine("m1", "10.0.0.1")) as api,
    ):
        monkeypatch.setenv("GCE_METADATA_HOST", metadata.host)
        spec = resolver_of(api, credentials="default").cluster_spec()
    assert spec == ClusterSpec({"worker": ["10.0.0.1:8470"]})
    assert metadata.requests[0].headers["Metadata-Flavor"] == "Google"
    assert "Authorization" not in metadata.requests[0].headers
    assert {request.headers["Authorization"] for request in api.requests} == {f"Bearer {TOKEN}"}


def test_the_token_can_come_from_a_function():
    tokens = iter(["first", "second"])
    with serve(group("m1") | machine("m1", "10.0.0.1")) as api:
        resolver = resolver_of(api, credentials=lambda: next(tokens))
        resolver.cluster_spec()
        resolver.cluster_spec()
    sent = [request.headers["Authorization"] for request in api.requests]
    assert sent == ["Bearer first"] * 2 + ["Bearer second"] * 2


def test_a_machine_without_an_account_says_so(monkeypatch):
    with serve({TOKEN_PATH: (200, {})}) as metadata:
        monkeypatch.setenv("GCE_METADATA_HOST", metadata.host)
        with pytest.raises(
            ClusterPlatformError, match=r"gave no access token\. Give the machine a"
        ):
            resolver_of(metadata, credentials=None).cluster_spec()


ANSWERS = {
    "an empty group": ({LIST: (200, {"kind": "x"})}, "no machine of the instance group 'my-group'"),
    "no such group": (
        {LIST: (404, {"error": {"code": 404, "message": "The resource was not found"}})},
        "answered 404 Not Found: The resource was not found",
    ),
    "no rights": (
        {LIST: (403, {"error": {"message": "Required 'compute.instanceGroups.list' permission"}})},
        "answered 403 Forbidden: Required 'compute.instanceGroups.list' permission",
    ),
    "a list that never ends": (
        {
            LIST: (200, {"nextPageToken": "p"}),
            f"{LIST}&pageToken=p": (200, {"nextPageToken": "p"}),
        },
        "the list of the instance group 'my-group' has more than 200 pages; the last one points to "
        "'p'.",
    ),
    "a machine that is a number": (
        {LIST: (200, {"items": [{"instance": 7}]})},
        'listInstances?orderBy=name has "instance": 7; expected a string of printable characters.',
    ),
    "an address that is none": (
        group("m1") | machine("m1", "10.0.0"),
        'instances/m1 has "networkIP": "10.0.0"; expected an IP address.',
    ),
    "no address": (
        group("m1") | machine("m1", ""),
        "the machine 'm1' has no address in its network yet.",
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_makes_no_cluster_says_why(name):
    routes, message = ANSWERS[name]
    with (
        serve(routes) as api,
        pytest.raises(ClusterPlatformError, match=re.escape(message)) as raised,
    ):
        resolver_of(api).cluster_spec()
    assert TOKEN not in str(raised.value)


def test_names_are_quoted_in_addresses():
    with serve({}) as api:
        resolver = GCEClusterResolver(
            "example.com:p", "z/../y", "a b", 1, credentials=TOKEN, service=api.url
        )
        with pytest.raises(ClusterPlatformError, match="answered 404"):
            resolver.cluster_spec()
    path = "/projects/example.com:p/zones/z%2F..%2Fy/instanceGroups/a%20b/listInstances"
    assert api.requests[0].path == f"{path}?orderBy=name"


MISTAKES = {
    "credentials": (
        {"credentials": object()},
        "credentials is of type object; expected 'default',",
    ),
    "service": (
        {"service": object()},
        "service is of type object; expected the address of the API",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_wrong_arguments_are_refused(name):
    arguments, message = MISTAKES[name]
    with pytest.raises(ClusterError, match=message):
        GCEClusterResolver("p", "z", "g", 1, **arguments)
