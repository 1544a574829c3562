"""A server is lost: all servers go back together, and what was applied runs again."""

import functools
import itertools
import random
import threading
import time

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.core.errors import OutOfRangeError
from tests.parameter_server.conftest import cluster_of
from tests.parameter_server.failing import MortalTransport

HALVES = rx.experimental.partitioners.FixedShardsPartitioner(2)


@pytest.fixture
def new_job():
    """``new_job(is_server_lost, is_worker_lost, ...)``: a coordinator, and its transport."""
    made = []

    def make(
        is_server_lost=lambda index, name: False,
        is_worker_lost=lambda index, attempt: False,
        num_workers=3,
        **options,
    ):
        transports = []

        def start(**counts):
            transports.append(MortalTransport(is_server_lost, is_worker_lost, **counts))
            return transports[0]

        strategy = rx.ParameterServerStrategy(cluster_of(num_workers, 2), HALVES, transport=start)
        made.append(strategy)
        return rx.coordinator.ClusterCoordinator(strategy, **options), transports[0]

    yield make
    for strategy in made:
        strategy.extended.close()


def by_chance(seed, share, most=10):
    """Whether a server is lost at this moment; `most` times at all."""
    chance, lock, lost = random.Random(seed), threading.Lock(), []

    def is_lost(index, name):
        with lock:
            if name not in ("stage", "commit", "read", "restore", "snapshot"):
                return False
            if len(lost) == most or chance.random() >= share:
                return False
            lost.append(name)
            return True

    return is_lost


@pytest.mark.parametrize(
    ("seed", "max_staleness", "snapshot_every"),
    [(0, None, 7), (1, 0, 7), (2, 2, 1), (3, None, 1000)],
)
def test_every_closure_counts_once_on_all_servers(new_job, seed, max_staleness, snapshot_every):
    count = 80
    is_server_lost = by_chance(seed, 0.01)
    chance = random.Random(seed)
    coordinator, _ = new_job(
        is_server_lost,
        lambda index, attempt: chance.random() < 0.02,
        max_staleness=max_staleness,
        snapshot_every=snapshot_every,
    )
    with coordinator.strategy.scope():
        counts = [rx.Variable(np.zeros(count, np.float32)) for _ in range(2)]
        marks = rx.Variable(np.zeros(4, np.float32))
    # Another number in each attempt, so that an attempt that is on one server only is seen.
    numbers = iter(
        coordinator.create_per_worker_dataset(lambda: map(np.float32, itertools.count()))
    )

    def closure(index, numbers):
        amounts = jnp.zeros(count).at[index].set(index + 1.0)
        for variable in counts:
            variable.assign_add(amounts)
        marks.assign_add(jnp.full(4, next(numbers)))
        return index

    values = [coordinator.schedule(closure, args=(np.int32(i), numbers)) for i in range(count)]
    coordinator.join()
    for variable in counts:
        np.testing.assert_array_equal(variable.numpy(), np.arange(1.0, count + 1))
    assert len(set(marks.numpy().tolist())) == 1, "updates of two attempts were mixed"
    assert [int(value.fetch()) for value in values] == list(range(count))
    stats = coordinator.stats()
    assert stats.applied == stats.scheduled == count
    assert stats.queued == stats.running == 0
    assert coordinator.strategy.extended.cluster.epoch > 0


def test_what_runs_again_comes_after_what_the_program_did_before(new_job):
    """With one worker and no staleness the numbers are those of a run without a loss."""
    results = []
    for losses in ((), (5, 11, 12)):
        coordinator, transport = new_job(num_workers=1, max_staleness=0, snapshot_every=4)
        with coordinator.strategy.scope():
            w = rx.Variable(np.full((4, 2), 0.5, np.float32))
            optimizer = rx.Optimizer(optax.sgd(0.1, momentum=0.5))

        def step(w, optimizer, x):
            loss = lambda: jnp.sum(jnp.square(w - x))  # noqa: E731
            value, gradient = rx.value_and_grad(loss, w)
            optimizer.apply_gradients([(gradient, w)])
            return value

        for i in range(16):
            if i in losses:
                transport.kill(i % 2)
            if i in (3, 10):
                coordinator.join()
                w.assign(w * 0.5 + i)  # a change of the program, between closures
            coordinator.schedule(functools.partial(step, w, optimizer), args=(float(i),))
        coordinator.join()
        results.append([w.numpy(), *(v.numpy() for v in optimizer.variables)])
    for lost, kept in zip(*results, strict=True):
        np.testing.assert_array_equal(lost, kept)


def test_a_read_after_join_waits_until_all_has_run_again(new_job):
    coordinator, transport = new_job(snapshot_every=1000)
    with coordinator.strategy.scope():
        total = rx.Variable(np.zeros(4, np.float32))
    for _ in range(20):
        coordinator.schedule(lambda: total.assign_add(np.ones(4, np.float32)).value)
    coordinator.join()
    for index in (0, 1, 0):
        transport.kill(index)
        assert total.numpy().tolist() == [20] * 4
        assert coordinator.stats().applied == 20
    assert coordinator.stats().replayed == 60


def test_the_program_changes_variables_while_servers_are_lost(new_job):
    coordinator, _ = new_job(by_chance(5, 0.02), snapshot_every=5)
    ones = np.ones(4, np.float32)
    made = []
    for i in range(12):
        with coordinator.strategy.scope():
            made.append(rx.Variable(i * ones))
        made[i].assign_add(ones)
        coordinator.schedule(lambda: made[0].assign_add(ones).value)
        made[i // 2].assign_sub(100 * ones)
    coordinator.join()
    expected = [i + 1 - (200 if i < 6 else 0) for i in range(12)]
    expected[0] += 12
    assert [v.numpy().tolist() for v in made] == [[value] * 4 for value in expected]
    assert coordinator.strategy.extended.cluster.epoch > 0


def test_two_servers_lost_at_once_and_one_while_servers_are_rolled_back(new_job):
    moments = {"restore": 2, "snapshot": 1}
    lock = threading.Lock()

    def is_lost(index, name):
        with lock:
            moments[name] = moments.get(name, 0) - 1
            return name == "restore" and moments[name] >= 0

    coordinator, transport = new_job(is_lost, snapshot_every=10)
    with coordinator.strategy.scope():
        total = rx.Variable(np.zeros(4, np.float32))
    for i in range(40):
        coordinator.schedule(lambda: total.assign_add(np.ones(4, np.float32)).value)
        if i == 25:
            transport.kill(0)
            transport.kill(1)
    coordinator.join()
    assert total.numpy().tolist() == [40] * 4


def test_an_error_of_another_closure_does_not_cancel_what_runs_again(new_job):
    coordinator, transport = new_job(num_workers=1, snapshot_every=1000)
    with coordinator.strategy.scope():
        total = rx.Variable(np.zeros(4, np.float32))
    empty = iter(coordinator.create_per_worker_dataset(lambda: [np.float32(1)]))
    for _ in range(10):
        coordinator.schedule(lambda: total.assign_add(np.ones(4, np.float32)).value)
    coordinator.schedule(lambda: next(empty))
    coordinator.join()
    transport.kill(1)
    with pytest.raises(OutOfRangeError, match="the dataset of worker 0 has ended"):
        coordinator.schedule(lambda: next(empty))
        coordinator.join()
    assert total.numpy().tolist() == [10] * 4


def test_a_closure_that_cannot_run_again_is_an_error_for_good(new_job):
    coordinator, transport = new_job(num_workers=1, snapshot_every=1000)
    with coordinator.strategy.scope():
        total = rx.Variable(np.zeros(4, np.float32))
    once = iter(coordinator.create_per_worker_dataset(lambda: [np.ones(4, np.float32)]))
    coordinator.schedule(lambda: total.assign_add(next(once)).value)
    coordinator.join()
    transport.kill(0)
    for _ in range(2):
        with pytest.raises(OutOfRangeError, match="has ended") as caught:
            coordinator.join()
            total.numpy()
    assert any("failed when it was run again" in note for note in caught.value.__notes__)


def test_a_server_that_nobody_replaces_is_an_error_after_the_timeout(new_job):
    coordinator, transport = new_job(snapshot_every=10, restart_timeout=0.3)
    with coordinator.strategy.scope():
        total = rx.Variable(np.zeros(4, np.float32))
    transport.kill(1, replaced=False)
    value = coordinator.schedule(lambda: total.assign_add(np.ones(4, np.float32)).value)
    since = time.monotonic()
    match = r"server 1 was killed, and 0\.3 s later there is none in its place"
    for look in (coordinator.join, total.numpy, lambda: total.assign(np.ones(4, np.float32))):
        with pytest.raises(rx.coordinator.ServerGoneError, match=match):
            look()
    with pytest.raises(rx.coordinator.ClosureCancelledError, match="server 1 was killed"):
        value.fetch()
    assert time.monotonic() - since < 10


def test_when_no_worker_is_left_the_wait_ends_and_names_them(new_job):
    coordinator, transport = new_job(
        is_worker_lost=lambda index, attempt: True, num_workers=2, restart_timeout=0.3
    )
    transport._come_back = lambda index: None
    with coordinator.strategy.scope():
        total = rx.Variable(np.zeros(4, np.float32))
    add = lambda: total.assign_add(np.ones(4, np.float32)).value  # noqa: E731
    for _ in range(2):
        values = [coordinator.schedule(add) for _ in range(5)]
        match = (
            r"no worker has been there for 0\.3 s, and 5 closures wait \(worker 0: worker 0 was "
        )
        with pytest.raises(
            rx.coordinator.WorkerGoneError, match=match + "killed; worker 1: worker 1"
        ):
            coordinator.join()
        for value in values:
            with pytest.raises(rx.coordinator.ClosureCancelledError, match="no worker was there"):
                value.fetch()
    transport._is_lost = lambda index, attempt: False
    type(transport)._come_back(transport, 0)
    coordinator.schedule(add)
    coordinator.join()
    assert total.numpy().tolist() == [1] * 4


def test_a_server_that_one_worker_cannot_reach_for_a_moment_is_not_lost(new_job):
    coordinator, transport = new_job(num_workers=2, snapshot_every=10)
    with coordinator.strategy.scope():
        total = rx.Variable(np.zeros(4, np.float32))
    refused = []

    class Refusing:
        def __init__(self, server):
            self._server = server

        def __getattr__(self, name):
            if name == "stage" and len(refused) < 2:
                refused.append(name)
                raise rx.coordinator.ServerGoneError("server 1 cannot be reached.", 1)
            return getattr(self._server, name)

    transport.workers[0]._servers = [transport.servers[0], Refusing(transport.servers[1])]
    while len(refused) < 2:
        coordinator.schedule(lambda: total.assign_add(np.ones(4, np.float32)).value)
        coordinator.join()
    stats = coordinator.stats()
    assert total.numpy().tolist() == [stats.applied] * 4
    assert (stats.replayed, coordinator.strategy.extended.cluster.epoch) == (0, 0)


def test_options_that_cannot_be(new_job):
    coordinator, _ = new_job(snapshot_every=5)
    assert rx.coordinator.ClusterCoordinator(coordinator.strategy) is coordinator
    with pytest.raises(
        ValueError, match="has a coordinator with max_staleness=None, queue_size=10"
    ):
        rx.coordinator.ClusterCoordinator(coordinator.strategy, snapshot_every=6)
    other = rx.ParameterServerStrategy(cluster_of(1, 1))
    for options, match in (
        ({"snapshot_every": 0}, "snapshot_every is 0; expected an int of 1 or more, or None"),
        ({"restart_timeout": 0}, "restart_timeout is 0; expected a number of seconds above 0"),
    ):
        with pytest.raises(ValueError, match=match):
            rx.coordinator.ClusterCoordinator(other, **options)
    other.extended.close()
