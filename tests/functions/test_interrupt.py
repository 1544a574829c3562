"""Ctrl-C in the middle of a step never leaves some variables written and others not."""

import itertools
import signal

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.backend import runahead

NUM_VARIABLES = 50
NUM_SHOTS = 300


@pytest.fixture
def shoot():
    """``shoot(seconds)`` raises KeyboardInterrupt on the main thread after that time."""

    def interrupt(signum, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("donate", [True, False])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_an_interrupted_step_happened_for_all_variables_or_for_none(shoot, num_replicas, donate):
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    with strategy.scope():
        variables = [rx.Variable(jnp.zeros(2)) for _ in range(NUM_VARIABLES)]

    @rx.function(donate=donate)
    def step(x):
        for variable in variables:
            variable.assign(variable + x)

    def values():
        return {float(np.asarray(v._storage.live_array())[0]) for v in variables}

    step(1.0)
    done, interrupted = 1, 0
    delays = itertools.cycle(np.geomspace(2e-5, 3e-3, 37).tolist())
    for delay in itertools.islice(delays, NUM_SHOTS // 4):
        stop = False
        try:
            try:
                shoot(delay)
                while not stop:
                    step(1.0)
            finally:
                shoot(0)
        except KeyboardInterrupt:
            interrupted += 1
        found = values()
        assert len(found) == 1, found
        done = found.pop()
        step(1.0)
        assert values() == {done + 1}
    assert interrupted == NUM_SHOTS // 4
    runahead.wait()


def test_an_interrupted_eager_run_leaves_a_strategy_that_works(shoot):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])

    def replica_fn():
        context = rx.get_replica_context()
        return context.all_reduce("SUM", context.replica_id_in_sync_group + 1.0)

    for delay in np.geomspace(2e-4, 1e-2, 40).tolist():
        with pytest.raises(KeyboardInterrupt, match=""):
            try:
                shoot(delay)
                while True:
                    strategy.run(replica_fn)
            finally:
                shoot(0)
        assert float(strategy.run(replica_fn)) == 3.0


def test_an_interrupted_trace_can_be_started_over(shoot):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    for delay in np.geomspace(1e-3, 5e-2, 12).tolist():
        with strategy.scope():
            total = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM)

        def replica_fn(x, total=total):
            for _ in range(20):
                total.assign_add(x * 1.0)

        step = rx.function(replica_fn)
        try:
            try:
                shoot(delay)
                strategy.run(step, args=(1.0,))
            finally:
                shoot(0)
        except KeyboardInterrupt:
            pass
        before = float(total)
        assert before in (0.0, 40.0)
        strategy.run(step, args=(1.0,))
        assert float(total) == before + 40.0
        assert rx.get_replica_context().num_replicas_in_sync == 1
