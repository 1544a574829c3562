"""Training on N replicas gives the parameters of the one-device run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from tests.contracts.strategies import mirrored

GLOBAL_BATCH = 16
NUM_STEPS = 50
EPSILON = 1e-3
MOMENTUM = 0.9
FIRST = rx.VariableAggregation.ONLY_FIRST_REPLICA


def batches(num_steps):
    """The same data for every run; every fifth batch is the short end of an epoch."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(4, 2)).astype(np.float32)
    for step_id in range(num_steps):
        size = GLOBAL_BATCH if step_id % 5 != 4 else 5
        x = rng.normal(size=(size, 4)).astype(np.float32)
        yield x, np.tanh(x @ weights) + 0.1


class Model:
    """Dense, batch norm, dense; everything that a step changes is a variable."""

    def __init__(self, optimizer):
        rng = np.random.default_rng(1)
        self.optimizer = optimizer
        self.params = {
            "w1": rx.Variable(rng.normal(size=(4, 6)).astype(np.float32) / 2, name="w1"),
            "scale": rx.Variable(np.ones(6, np.float32), name="scale"),
            "shift": rx.Variable(np.zeros(6, np.float32), name="shift"),
            "w2": rx.Variable(rng.normal(size=(6, 2)).astype(np.float32) / 3, name="w2"),
        }
        self.moving_mean = rx.Variable(np.zeros(6, np.float32), False, aggregation=FIRST)
        self.moving_variance = rx.Variable(np.ones(6, np.float32), False, aggregation=FIRST)
        self.num_steps = rx.Variable(0, False, aggregation=FIRST)
        zeros = lambda v: rx.Variable(np.zeros(v.shape, np.float32), False)  # noqa: E731
        self.slots = {name: (zeros(v), zeros(v)) for name, v in self.params.items()}

    def normalised(self, h):
        """Batch norm over the examples of all replicas; also an empty batch takes part."""
        context = rx.get_replica_context()
        sums = (jnp.full((), h.shape[0], jnp.float32), h.sum(0), (h * h).sum(0))
        count, total, squares = context.all_reduce("SUM", sums)
        mean = total / count
        variance = squares / count - mean * mean
        self.moving_mean.assign(MOMENTUM * self.moving_mean + (1 - MOMENTUM) * mean)
        self.moving_variance.assign(MOMENTUM * self.moving_variance + (1 - MOMENTUM) * variance)
        p = self.params
        return (h - mean) / jnp.sqrt(variance + EPSILON) * p["scale"] + p["shift"], count

    def loss(self, x, y):
        """This replica's part of the mean over the global batch."""
        h, count = self.normalised(x @ self.params["w1"])
        out = jax.nn.relu(h) @ self.params["w2"]
        return ((out - y) ** 2).sum() / jax.lax.stop_gradient(count)

    def step(self, x, y):
        context = rx.get_replica_context()
        loss, gradients = rx.value_and_grad(lambda: self.loss(x, y), self.params)
        # Each part depends on every replica's examples through batch norm: the gradient of
        # all_reduce has collected those, so what is missing is the sum of the parts.
        loss, gradients = context.all_reduce("SUM", (loss, gradients))
        self.num_steps.assign_add(1)
        context.merge_call(self.apply, args=(gradients,))
        return loss

    def apply(self, strategy, gradients):
        count = self.num_steps.read_value().astype(jnp.float32)
        for name, v in self.params.items():
            gradient = gradients[name]
            if self.optimizer == "sgd":
                v.assign_sub(0.1 * gradient)
                continue
            first, second = self.slots[name]
            first.assign(0.9 * first + 0.1 * gradient)
            second.assign(0.99 * second + 0.01 * gradient * gradient)
            rate = 0.01 * jnp.sqrt(1 - 0.99**count) / (1 - 0.9**count)
            v.assign_sub(rate * first / (jnp.sqrt(second) + 1e-5))

    def state(self):
        everything = {**self.params, "mean": self.moving_mean, "variance": self.moving_variance}
        return {name: v.numpy() for name, v in everything.items()}


def train(strategy, optimizer, num_steps, wrap):
    with strategy.scope():
        model = Model(optimizer)
    step = wrap(model.step)
    losses = []
    for x, y in batches(num_steps):
        x, y = strategy.distribute_batch((x, y))
        losses.append(strategy.run(step, args=(x, y)))
    assert int(model.num_steps) == num_steps
    for v in model.params.values():  # the copies never drift apart
        copies = [np.asarray(copy) for copy in strategy.experimental_local_results(v)]
        assert all(np.array_equal(copy, copies[0]) for copy in copies)
    return model.state(), np.asarray([float(loss) for loss in losses])


_references: dict = {}


def reference(optimizer, num_steps):
    """The one-device run, as plain JAX would do it: the default strategy, compiled."""
    key = optimizer, num_steps
    if key not in _references:
        _references[key] = train(rx.get_strategy(), optimizer, num_steps, rx.function)
    return _references[key]


def assert_same(result, expected):
    state, losses = result
    expected_state, expected_losses = expected
    for name, value in expected_state.items():
        limit = 1e-5 * max(1.0, float(np.abs(value).max()))
        assert np.abs(state[name] - value).max() <= limit, name
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4, atol=1e-5)


@pytest.mark.quick
@pytest.mark.parametrize("num_replicas", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_compiled_training_equals_one_device(optimizer, num_replicas):
    expected = reference(optimizer, NUM_STEPS)
    assert expected[1][-2] < 0.7 * expected[1][0]  # it does learn
    result = train(mirrored(num_replicas), optimizer, NUM_STEPS, rx.function)
    assert_same(result, expected)


def test_one_device_strategy_equals_the_default():
    result = train(rx.OneDeviceStrategy("CPU:2"), "sgd", NUM_STEPS, rx.function)
    assert_same(result, reference("sgd", NUM_STEPS))


@pytest.mark.slow
def test_eager_training_equals_one_device():
    result = train(mirrored(2), "sgd", 6, lambda step: step)
    assert_same(result, reference("sgd", 6))


def test_an_uneven_last_batch_costs_one_more_program():
    strategy = mirrored(8)
    with strategy.scope():
        model = Model("sgd")
    step = rx.function(model.step)
    counts = []
    for x, y in batches(15):
        strategy.run(step, args=strategy.distribute_batch((x, y)))
        counts.append(step.trace_count)
    # 16 examples: 2 each. 5 examples: five replicas with one, three with none, so two shapes.
    assert counts[0] == 1
    assert counts[4:] == [3] * 11
