"""The coordinator contract over Ray: the tests of the modules below, with other processes.

A test of theirs that asks for a strategy or a coordinator runs here, too. They share workers and
servers, which take seconds to start. Every strategy numbers its shards, programs and closures
after those of the one before, so it finds nothing of that in them.
"""

import inspect
import itertools

import pytest

import replicax as rx
from replicax.parameter_server.ray_transport import RayTransport
from tests.parameter_server import (
    test_checkpoints,
    test_closures,
    test_consistency,
    test_datasets,
    test_failures,
    test_optimizers,
)
from tests.parameter_server.conftest import cluster_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

CONTRACT = (
    *(test_checkpoints, test_closures, test_consistency),
    *(test_datasets, test_failures, test_optimizers),
)
EMBEDDED_ONLY = {
    "test_workers_are_not_silently_serial",  # how often processes get a processor decides there
}
MOST_WORKERS, MOST_SERVERS = 3, 2


def contract_of(module):
    """The tests of a module that run over any transport."""
    return {
        name: test
        for name, test in vars(module).items()
        if name.startswith("test_")
        and name not in EMBEDDED_ONLY
        and {"strategy", "new_strategy", "coordinator"} & {*inspect.signature(test).parameters}
    }


for contract in CONTRACT:
    globals().update(contract_of(contract))


@pytest.fixture(scope="module")
def processes(ray_session):
    """The workers and servers of all tests."""
    transport = RayTransport(num_workers=MOST_WORKERS, num_servers=MOST_SERVERS)
    yield transport
    transport.close()


@pytest.fixture(scope="module")
def numbers():
    """Numbers that nothing has had: of shards, and of all else."""
    return itertools.count(), itertools.count()


class SomeProcesses:
    """As many of the processes as a test wants; they outlive it."""

    def __init__(self, transport, *, num_workers, num_servers):
        assert num_workers <= MOST_WORKERS and num_servers <= MOST_SERVERS
        self.workers, self.servers = (
            transport.workers[:num_workers],
            transport.servers[:num_servers],
        )
        self.watch = transport.watch

    def close(self):
        pass


@pytest.fixture
def new_strategy(processes, numbers):
    """As that of the embedded transport."""
    made = []

    def make(num_workers=2, num_servers=2, partitioner=None):
        strategy = rx.ParameterServerStrategy(
            cluster_of(num_workers, num_servers),
            partitioner,
            transport=lambda **counts: SomeProcesses(processes, **counts),
        )
        cluster = strategy.extended.cluster
        cluster._shard_ids, cluster._numbers = numbers
        made.append(strategy)
        return strategy

    yield make
    for strategy in made:
        strategy.extended.close()
