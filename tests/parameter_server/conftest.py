"""Fixtures of the coordinator contract: one test, every transport."""

import pytest

import replicax as rx
from replicax.ray_cluster.session import Session
from tests.parameter_server.transports import RAY, TRANSPORTS


def cluster_of(num_workers, num_servers):
    """A resolver of so many tasks; the addresses are not used."""
    return rx.cluster_resolver.SimpleClusterResolver(
        {
            "ps": [f"server:{i}" for i in range(num_servers)],
            "worker": [f"worker:{i}" for i in range(num_workers)],
        }
    )


@pytest.fixture(scope="session", autouse=True)
def ray_session(request):
    """A cluster of Ray, if a test wants one; it changes the environment before any test begins."""
    names = [item.nodeid for item in request.session.items]
    if not any(f"[{RAY}" in name or "test_on_ray" in name for name in names):
        yield None
        return
    with Session(num_cpus=16) as session:
        yield session


@pytest.fixture(params=TRANSPORTS)
def new_strategy(request):
    """``new_strategy(num_workers, num_servers, partitioner)``; ended with the test."""
    made = []

    def make(num_workers=2, num_servers=2, partitioner=None):
        strategy = rx.ParameterServerStrategy(
            cluster_of(num_workers, num_servers), partitioner, transport=request.param
        )
        made.append(strategy)
        return strategy

    yield make
    for strategy in made:
        strategy.extended.close()


@pytest.fixture
def strategy(new_strategy):
    """Two workers, two servers."""
    return new_strategy()


@pytest.fixture
def coordinator(strategy):
    """The coordinator of `strategy`."""
    return rx.coordinator.ClusterCoordinator(strategy)
