"""Servers and workers as processes that Ray starts: what is lost, what is noticed, what is left."""

import os
import signal
import time

import numpy as np
import pytest

import replicax as rx
from replicax.parameter_server import wire
from replicax.parameter_server.ray_transport import RayTransport
from replicax.parameter_server.transport import ServerGoneError
from replicax.parameter_server.wire import TokenError
from tests.launch.programs import is_running, wait_until
from tests.parameter_server.conftest import cluster_of
from tests.ray_cluster.clusters import descendants, is_loopback, listeners

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NOTICED_SECONDS = 10.0


class Job:
    """A strategy on Ray with a vector on each server, in which every closure has an element."""

    def __init__(self, num_workers, num_servers, num_closures):
        made = []

        def start(**counts):
            made.append(RayTransport(**counts))
            return made[0]

        self.strategy = rx.ParameterServerStrategy(
            cluster_of(num_workers, num_servers), transport=start
        )
        (self.transport,) = made
        self.coordinator = rx.coordinator.ClusterCoordinator(self.strategy)
        zeros = np.zeros(num_closures, np.float32)
        with self.strategy.scope():
            self.counts = [rx.Variable(zeros) for _ in range(num_servers)]
        counts = self.counts

        @rx.function
        def add(amounts):
            for count in counts:
                count.assign_add(amounts)
            return amounts.sum()

        self._add = add

    def schedule(self, index):
        amounts = np.zeros(self.counts[0].shape, np.float32)
        amounts[index] = index + 1
        return self.coordinator.schedule(self._add, args=(amounts,))

    def check(self):
        """Every closure was applied once, on every server."""
        expected = np.arange(1, len(self.counts[0].numpy()) + 1)
        for count in self.counts:
            np.testing.assert_array_equal(count.numpy(), expected)

    @property
    def pids(self):
        return [task.placed.pid for task in (*self.transport.servers, *self.transport.workers)]


@pytest.fixture
def new_job(ray_session):
    """``new_job(num_workers, num_servers, num_closures)``; nothing is left of it."""
    made = []

    def make(*arguments):
        made.append(Job(*arguments))
        return made[-1]

    yield make
    for job in made:
        pids = job.pids
        job.strategy.extended.close()
        assert wait_until(lambda pids=pids: not any(map(is_running, pids)))


def test_a_stopped_worker_is_noticed_and_its_closures_run_elsewhere(new_job, ray_session):
    """The smoke test: also who listens, who may connect, and that a lost server raises."""
    job = new_job(2, 2, 40)
    assert job.schedule(0).fetch() == 1.0
    found = listeners(descendants(of=os.getpid()) | {os.getpid()})
    assert [address for address in found if not is_loopback(address)] == []
    for task in (job.transport.servers[0], job.transport.workers[0]):
        with pytest.raises(TokenError, match="refused the token"):
            wire.connect(*task.placed.address, b"another token")

    victim = job.transport.workers[0]
    stopped = victim.placed.pid
    os.kill(stopped, signal.SIGSTOP)
    since = time.monotonic()
    for index in range(1, 40):
        job.schedule(index)
    assert wait_until(lambda: not is_running(stopped))  # it was noticed, and killed
    assert time.monotonic() - since < NOTICED_SECONDS
    job.coordinator.join()
    job.check()
    assert wait_until(lambda: victim.placed.pid != stopped and victim.placed.address is not None)

    os.kill(job.transport.servers[1].placed.pid, signal.SIGKILL)
    with pytest.raises(ServerGoneError, match="server 1 is gone"):
        for _ in range(1000):
            job.schedule(0)
            job.coordinator.join()


@pytest.mark.slow
def test_a_server_that_stops_before_there_is_a_coordinator_keeps_nobody_waiting(ray_session):
    transport = RayTransport(num_workers=1, num_servers=1)
    strategy = rx.ParameterServerStrategy(cluster_of(1, 1), transport=lambda **counts: transport)
    pids = [transport.servers[0].placed.pid, transport.workers[0].placed.pid]
    try:
        with strategy.scope():
            variable = rx.Variable(1.0)
        os.kill(pids[0], signal.SIGSTOP)
        since = time.monotonic()
        with pytest.raises(ServerGoneError, match="server 0"):
            variable.numpy()
        assert time.monotonic() - since < NOTICED_SECONDS
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with pytest.raises(ServerGoneError, match="server 0 is gone: it does not answer"):
            coordinator.join()
        pids += [task.placed.pid for task in (*transport.servers, *transport.workers)]
    finally:
        strategy.extended.close()
    assert wait_until(lambda: not any(map(is_running, pids)))
