"""The base of all resolvers, the one that is told everything, and several as one."""

import re

import pytest

import replicax as rx
from replicax.cluster.resolver import ClusterResolver
from replicax.cluster.simple import SimpleClusterResolver
from replicax.cluster.spec import ClusterSpec
from replicax.cluster.union import UnionResolver
from replicax.core.errors import ClusterError, ClusterPlatformError
from tests.backend.fresh_process import run_fresh

WORKERS = ClusterSpec({"worker": ["a:1", "b:1"]})


class OwnResolver(ClusterResolver):
    def cluster_spec(self):
        return WORKERS


def test_a_resolver_needs_a_cluster_spec():
    with pytest.raises(TypeError, match="cluster_spec"):
        ClusterResolver()  # pyright: ignore[reportAbstractUsage]


def test_a_resolver_of_the_users_own_has_the_rest():
    resolver = OwnResolver()
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == (None, None, None)
    assert (resolver.environment, resolver.master()) == ("", "")
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 0, "grpc"
    assert resolver.master() == "grpc://a:1"
    assert resolver.master(task_id=1) == "grpc://b:1"
    assert resolver.master("worker", 1, "") == "b:1"
    with pytest.raises(ClusterError, match="job 'worker' has no task 2"):
        resolver.master(task_id=2)


def test_accelerators_of_this_machine_are_counted_and_a_cpu_is_none():
    assert OwnResolver().num_accelerators() == {}


def test_accelerators_of_another_task_are_not_known_before_the_workers_have_met():
    resolver = OwnResolver()
    resolver.task_type, resolver.task_id = "worker", 0
    message = "the accelerators of worker 1 are not known before the workers have met. Create the"
    with pytest.raises(ClusterPlatformError, match=message):
        resolver.num_accelerators("worker", 1)
    assert resolver.num_accelerators("worker", 0) == {}


def test_virtual_accelerators_are_counted_without_starting_jax():
    run_fresh(
        """
        import replicax as rx
        from replicax.jax_internals.processes import has_started
        rx.set_virtual_devices(3, kind="GPU")
        resolver = rx.cluster_resolver.TFConfigClusterResolver()
        assert resolver.num_accelerators() == {"GPU": 3}
        assert not has_started()
        import jax
        jax.devices()
        assert resolver.num_accelerators() == {"GPU": 3}
        """
    )


# -- told everything ---------------------------------------------------------------------------


def test_a_simple_resolver_answers_with_what_it_was_given():
    resolver = SimpleClusterResolver(
        WORKERS, "m:1", "worker", 1, "here", num_accelerators={"GPU": 8}, rpc_layer="grpc"
    )
    assert resolver.cluster_spec() == WORKERS
    assert (resolver.task_type, resolver.task_id, resolver.environment) == ("worker", 1, "here")
    assert resolver.num_accelerators() == resolver.num_accelerators("worker", 0) == {"GPU": 8}
    assert resolver.master() == "grpc://m:1"
    assert resolver.master("worker", 0) == "grpc://a:1"
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "ps", 3, "http"
    assert (resolver.task_type, resolver.task_id) == ("ps", 3)
    assert resolver.master("worker", 0) == "http://a:1"


def test_a_simple_resolver_needs_the_cluster_only():
    resolver = SimpleClusterResolver({"worker": ["a:1"]})
    assert resolver.cluster_spec() == ClusterSpec({"worker": ["a:1"]})
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == (None, None, None)
    assert (resolver.master(), resolver.num_accelerators()) == ("", {})
    with pytest.raises(ClusterError, match="a cluster is a dict from job name"):
        SimpleClusterResolver("worker")  # pyright: ignore[reportArgumentType]


# -- several as one ----------------------------------------------------------------------------


def simple(cluster, **arguments):
    return SimpleClusterResolver(cluster, **arguments)


UNIONS = {
    "different jobs": (
        [{"worker": ["a:1"]}, {"ps": ["b:1"]}],
        {"worker": ["a:1"], "ps": ["b:1"]},
    ),
    "lists are joined": (
        [{"worker": ["a:1"]}, {"worker": ["b:1"], "ps": ["c:1"]}],
        {"worker": ["a:1", "b:1"], "ps": ["c:1"]},
    ),
    "the same job once": ([{"worker": ["a:1"]}, {"worker": ["a:1"]}], {"worker": ["a:1"]}),
    "a list and a dict": (
        [{"worker": ["a:1"]}, {"worker": {3: "b:1"}}],
        {"worker": {0: "a:1", 3: "b:1"}},
    ),
    "two dicts": (
        [{"worker": {1: "a:1"}}, {"worker": {0: "b:1"}}],
        {"worker": ["b:1", "a:1"]},
    ),
    "one": ([{"worker": ["a:1"]}], {"worker": ["a:1"]}),
}


@pytest.mark.parametrize("name", UNIONS)
def test_clusters_are_merged(name):
    clusters, merged = UNIONS[name]
    union = UnionResolver(*map(simple, clusters))
    assert union.cluster_spec() == ClusterSpec(merged)


def test_two_tasks_of_one_id_cannot_be_merged():
    clashing = UnionResolver(simple({"worker": {1: "a:1"}}), simple({"worker": ["b:1", "c:1"]}))
    message = re.escape("two resolvers have the tasks [1] of job 'worker', at [{1: 'a:1'}, ['b:1',")
    with pytest.raises(ClusterError, match=message):
        clashing.cluster_spec()


def test_the_first_resolver_that_knows_a_thing_is_asked_for_it():
    gpus = simple(WORKERS, num_accelerators={"GPU": 1}, environment="here", master="m:1")
    task = simple(WORKERS, task_type="worker", task_id=0, rpc_layer="grpc")
    union = UnionResolver(gpus, task)
    assert union.cluster_spec() == WORKERS
    assert (union.task_type, union.task_id, union.rpc_layer) == ("worker", 0, "grpc")
    assert (union.num_accelerators(), union.environment) == ({"GPU": 1}, "here")
    assert union.master() == "m:1"
    assert union.master("worker", 1) == "grpc://b:1"


def test_arguments_of_a_union_win_and_zero_is_an_id():
    union = UnionResolver(
        simple(WORKERS, task_type="ps", task_id=3, rpc_layer="grpc"),
        task_type="worker",
        task_id=0,
        rpc_layer="http",
    )
    assert (union.task_type, union.task_id, union.rpc_layer) == ("worker", 0, "http")
    union.rpc_layer = None
    assert union.rpc_layer == "grpc"


MISTAKES = {
    "none": ((), {}, "UnionResolver got no resolver. Pass at least one."),
    "another object": (("x",), {}, "UnionResolver got 'x'; expected cluster resolvers."),
    "another name": (
        (simple({}),),
        {"task": 1},
        "UnionResolver got ['task']; expected task_type, task_id or rpc_layer.",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_union_of_something_else_is_refused(name):
    args, kwargs, message = MISTAKES[name]
    with pytest.raises(ClusterError, match=re.escape(message)):
        UnionResolver(*args, **kwargs)


def test_the_names_are_public():
    assert rx.cluster_resolver.UnionResolver is UnionResolver
