"""Fixtures of the contract suite: one test, every strategy, every executor."""

import pytest

import replicax as rx
from replicax.core import notices
from tests.contracts import cluster
from tests.contracts.executors import EXECUTORS
from tests.contracts.fixtures import distributed_of, each_of, execute, many_of, two  # noqa: F401
from tests.contracts.strategies import IN_CLUSTER, STRATEGIES

strategy = each_of(STRATEGIES)
distributed = each_of(distributed_of(STRATEGIES))
many = each_of(many_of(STRATEGIES))

# Where the variables are where the replicas run, so that nothing is moved.
in_place = each_of(
    {
        name: make
        for name, make in STRATEGIES.items()
        if make().extended.parameter_devices == make().extended.worker_devices
    }
)


@pytest.fixture(params=[name for name, row in EXECUTORS.items() if row.is_compiled])
def compiled(request):
    """Every executor that compiles."""
    return EXECUTORS[request.param]


@pytest.fixture
def eager():
    """The executor that calls the function once per replica."""
    return EXECUTORS["eager"]


EXIT_STATUS = pytest.StashKey[int]()
OVER_STRATEGIES = {"strategy", "distributed", "many", "in_place"}


def pytest_collection_modifyitems(items):
    """Of a cluster's workers, the tests that run over strategies; the others need no cluster."""
    if IN_CLUSTER:
        items[:] = [
            item
            for item in items
            if OVER_STRATEGIES & set(item.fixturenames)
            and item.get_closest_marker("one_worker") is None
        ]


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """Ends a worker of a cluster without the minutes that JAX takes to free every program."""
    if IN_CLUSTER:
        cluster.end_together(config.stash.get(EXIT_STATUS, 1))


def pytest_sessionfinish(session, exitstatus):
    """Remembers how the run ended."""
    session.config.stash[EXIT_STATUS] = int(exitstatus)


@pytest.fixture(autouse=IN_CLUSTER)
def together(request, monkeypatch):
    """The workers of a cluster begin each test together, and show the results of all."""
    cluster.begin_together(request.node.nodeid, monkeypatch)
    if request.node.get_closest_marker("own_results") is not None:
        return
    strategies = rx.MultiWorkerMirroredStrategy
    everywhere = cluster.results_of_all(strategies.experimental_local_results)
    monkeypatch.setattr(strategies, "experimental_local_results", everywhere)


@pytest.fixture
def branch_notice(request):
    """Lets the notice about branching at a line of the test's file be shown again."""
    for line in range(1, 500):
        notices.forget(("branch on replica id", f"{request.path}:{line}"))
