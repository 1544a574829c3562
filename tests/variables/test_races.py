"""Assignments beside the compiled steps of another thread: none of either is lost."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from tests.contracts.strategies import central, mirrored, sharded

DEADLINE_SECONDS = 60.0
MEAN, SUM = rx.VariableAggregation.MEAN, rx.VariableAggregation.SUM


class Stepping:
    """Repeats `step` on another thread; counts how often."""

    def __init__(self, step):
        self.count = 0
        self._step = step
        self._stop = threading.Event()
        self._errors = []
        self._thread = threading.Thread(target=self._work)

    def _work(self):
        try:
            while not self._stop.is_set():
                self._step()
                self.count += 1
        except BaseException as error:
            self._errors.append(error)

    def __enter__(self):
        for _ in range(3):  # compile, and find the shortcut
            self._step()
        self.count = 3
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive()
        assert not self._errors, self._errors


def quietly(action, *args):
    """A function that does it and returns nothing."""

    def call():
        action(*args)

    return call


class Mirrored:
    """One is added to a mirrored variable."""

    def __init__(self, strategy):
        self.strategy = strategy
        with strategy.scope():
            self.v = rx.Variable([0.0, 0.0], aggregation=MEAN)
        self.one = jnp.ones(2)
        compiled = rx.function(quietly(self.v.assign_add, self.one))
        self.step = lambda: strategy.run(compiled)

    def add(self):
        self.v.assign_add(self.one)

    def total(self):
        return float(self.v.numpy()[0])


class Subtracted(Mirrored):
    def add(self):
        self.v.assign_sub(-self.one)


class InReplicas(Mirrored):
    def add(self):
        self.strategy.run(quietly(self.v.assign_add, self.one))


class Updated(Mirrored):
    def add(self):
        self.strategy.extended.update(self.v, lambda v: v.assign_add(self.one))


class SyncOnRead:
    """One is added over all copies of a sync-on-read variable."""

    def __init__(self, strategy):
        self.strategy = strategy
        with strategy.scope():
            self.v = rx.Variable(
                0.0, synchronization=rx.VariableSynchronization.ON_READ, aggregation=SUM
            )
        self.add_share = quietly(self.v.assign_add, 1.0 / strategy.num_replicas_in_sync)
        compiled = rx.function(self.add_share)
        self.step = lambda: strategy.run(compiled)

    def add(self):
        self.strategy.run(self.add_share)

    def total(self):
        return float(self.v)


class Metric(SyncOnRead):
    def __init__(self, strategy):
        self.strategy = strategy
        with strategy.scope():
            self.v = rx.metrics.Sum()
        self.add_share = quietly(self.v.update_state, 1.0 / strategy.num_replicas_in_sync)
        compiled = rx.function(self.add_share)
        self.step = lambda: strategy.run(compiled)

    def total(self):
        return float(self.v.result())


class Optimizer(SyncOnRead):
    """One is added by a step of gradient descent."""

    def __init__(self, strategy):
        self.strategy = strategy
        with strategy.scope():
            self.v = rx.Variable(0.0)
            optimizer = rx.Optimizer(optax.sgd(1.0))
            optimizer.build([self.v])
        gradient = jnp.float32(-1.0 / strategy.num_replicas_in_sync)
        self.add_share = quietly(optimizer.apply_gradients, [(gradient, self.v)])
        compiled = rx.function(self.add_share)
        self.step = lambda: strategy.run(compiled)
        self.iterations = optimizer.iterations

    def total(self):
        assert float(self.v) == float(self.iterations)
        return float(self.v)


WAYS = (Mirrored, Subtracted, InReplicas, Updated, SyncOnRead, Metric, Optimizer)
STRATEGIES = {
    "mirrored_1": lambda: mirrored(1),
    "mirrored_2": lambda: mirrored(2),
    "sharded_2": lambda: sharded(2),
    "central_2": lambda: central(2),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("way", WAYS)
def test_no_addition_is_lost_beside_compiled_steps(strategy, way):
    case, count = way(STRATEGIES[strategy]()), 40
    case.add()  # what it compiles takes a while
    with Stepping(case.step) as steps:
        for _ in range(count):
            case.add()
    assert case.total() == count + 1 + steps.count


def test_no_addition_to_a_plain_variable_is_lost_beside_compiled_steps():
    v, count = rx.Variable(0.0), 300
    with Stepping(rx.function(quietly(v.assign_add, 1.0))) as steps:
        for _ in range(count):
            v.assign_add(1.0)
    assert float(v) == count + steps.count


@pytest.mark.parametrize("make", [lambda: mirrored(2), rx.get_strategy])
def test_no_assignment_is_lost_beside_compiled_steps(make):
    strategy = make()
    with strategy.scope():
        v = rx.Variable(0.0, aggregation=MEAN)
    compiled = rx.function(quietly(v.assign_add, 1.0))
    with Stepping(lambda: strategy.run(compiled)):
        for index in range(100):
            low = -1e6 * (1 + index % 2)
            v.assign(low)
            assert low <= float(v) < low + 5e5


def test_a_generator_gives_no_key_twice_beside_compiled_steps():
    generator, keys, count = rx.random.Generator(1), [], 100
    compiled = rx.function(lambda: jax.random.key_data(generator.next_key()))
    with Stepping(lambda: keys.append(np.asarray(compiled()))):
        for _ in range(count):
            keys.append(np.asarray(jax.random.key_data(generator.next_key())))
    assert len({key.tobytes() for key in keys}) == len(keys) == int(generator.state)


@pytest.mark.parametrize("donate", [True, False])
def test_a_host_callback_may_assign_while_steps_are_launched(donate):
    strategy, seen = mirrored(2), rx.Variable(np.float32(0.0))
    with strategy.scope():
        v = rx.Variable(0.0, aggregation=SUM)

    def replica_fn():
        v.assign_add(1.0)
        jax.debug.callback(lambda x: quietly(seen.assign, np.float32(x))(), v.value)

    step = rx.function(replica_fn, donate=donate)
    for _ in range(100):
        strategy.run(step)
    assert float(v) == 200.0
    jax.effects_barrier()
    assert float(seen) == 200.0
