"""Fixtures of the coordinator contract: one test, every transport."""

import pathlib

import pytest

import replicax as rx
from replicax.ray_cluster.session import Session


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
    folder = pathlib.Path(__file__).parent
    if not any(
        item.get_closest_marker("cluster") and item.path.is_relative_to(folder)
        for item in request.session.items
    ):
        yield None
        return
    with Session(num_cpus=16) as session:
        yield session


@pytest.fixture
def new_strategy():
    """``new_strategy(num_workers, num_servers, partitioner)``; ended with the test.

    Another one in `test_contract_on_ray` lets the same tests run over Ray.
    """
    made = []

    def make(num_workers=2, num_servers=2, partitioner=None):
        strategy = rx.ParameterServerStrategy(cluster_of(num_workers, num_servers), partitioner)
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
