"""The named optimizers compute the documented formulas, with the documented arguments.

The reference is NumPy on one device: a function of one variable, its gradient and the number of
the step, with a dict for what it keeps.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax import optimizers
from replicax.optimizers.trees import values_of
from tests.optimizers.problem import Training, assert_close, batches, initial, loss, mirrored
from tests.tiers import full_only

NUM_STEPS = 6
RATE = 0.05


def rms_of(value):
    return np.sqrt(np.mean(np.square(value)))


def rmsprop(kept, w, g, step):
    kept["mean"] = 0.8 * kept.get("mean", 0.0) + 0.2 * g**2
    return w - RATE * g / np.sqrt(kept["mean"] + 1e-7)


def rmsprop_centered_with_momentum(kept, w, g, step):
    kept["mean"] = 0.8 * kept.get("mean", 0.0) + 0.2 * g**2
    kept["gradient"] = 0.8 * kept.get("gradient", 0.0) + 0.2 * g
    increment = RATE * g / np.sqrt(kept["mean"] - kept["gradient"] ** 2 + 1e-3)
    kept["momentum"] = 0.9 * kept.get("momentum", 0.0) + increment
    return w - kept["momentum"] - 0.1 * RATE * w


def adagrad(kept, w, g, step):
    kept["sum"] = kept.get("sum", 0.1) + g**2
    return w - RATE * g / np.sqrt(kept["sum"] + 1e-7)


def lion(kept, w, g, step):
    momentum = kept.get("momentum", np.zeros_like(g))
    kept["momentum"] = 0.99 * momentum + 0.01 * g
    return w - RATE * np.sign(0.9 * momentum + 0.1 * g)


def adamw(kept, w, g, step):
    kept["m"] = 0.9 * kept.get("m", 0.0) + 0.1 * g
    kept["v"] = 0.999 * kept.get("v", 0.0) + 0.001 * g**2
    m, v = kept["m"] / (1 - 0.9**step), kept["v"] / (1 - 0.999**step)
    return w - RATE * m / (np.sqrt(v) + 1e-7) - RATE * 0.1 * w


def nadam(kept, w, g, step):
    kept["m"] = 0.9 * kept.get("m", 0.0) + 0.1 * g
    kept["v"] = 0.999 * kept.get("v", 0.0) + 0.001 * g**2
    m = 0.9 * kept["m"] / (1 - 0.9 ** (step + 1)) + 0.1 * g / (1 - 0.9**step)
    return w - RATE * m / (np.sqrt(kept["v"] / (1 - 0.999**step)) + 1e-7)


def adafactor(kept, w, g, step, limit=np.inf):
    decay = 1 - float(step) ** -0.8
    squares = g**2 + 1e-30
    if g.ndim < 2:
        kept["v"] = v = decay * kept.get("v", 0.0) + (1 - decay) * squares
    else:
        kept["row"] = row = decay * kept.get("row", 0.0) + (1 - decay) * squares.mean(-1)
        kept["column"] = column = decay * kept.get("column", 0.0) + (1 - decay) * squares.mean(-2)
        v = (row / row.mean())[:, None] * column[None, :]
    update = g / np.sqrt(v)
    update /= max(1.0, rms_of(update))
    return w - max(1e-3, rms_of(w)) * min(limit, 1 / np.sqrt(step)) * update


def clipped(fn):
    """Plain gradient descent with `fn` of each gradient."""
    return lambda kept, w, g, step: w - RATE * fn(g)


FORMULAS = {
    "RMSprop": (lambda: optimizers.RMSprop(RATE, rho=0.8), rmsprop),
    "RMSprop(centered, momentum, weight_decay)": (
        lambda: optimizers.RMSprop(RATE, 0.8, 0.9, 1e-3, centered=True, weight_decay=0.1),
        rmsprop_centered_with_momentum,
    ),
    "Adagrad": (lambda: optimizers.Adagrad(RATE), adagrad),
    "Lion": (lambda: optimizers.Lion(RATE), lion),
    "AdamW": (lambda: optimizers.AdamW(RATE, weight_decay=0.1), adamw),
    "Adam(weight_decay)": (lambda: optimizers.Adam(RATE, weight_decay=0.1), adamw),
    "Nadam": (lambda: optimizers.Nadam(RATE), nadam),
    "Adafactor": (
        lambda: optimizers.Adafactor(RATE, relative_step=False),
        lambda *args: adafactor_fixed(*args),
    ),
    "Adafactor(relative_step)": (
        lambda: optimizers.Adafactor(0.5),  # less than 1 / sqrt(step) up to the fourth
        lambda *args: adafactor(*args, limit=0.5),
    ),
    "SGD(clipnorm)": (
        lambda: optimizers.SGD(RATE, clipnorm=0.1),
        clipped(lambda g: g * 0.1 / max(0.1, np.linalg.norm(g))),
    ),
    "SGD(clipvalue)": (
        lambda: optimizers.SGD(RATE, clipvalue=0.05),
        clipped(lambda g: np.clip(g, -0.05, 0.05)),
    ),
}


def adafactor_fixed(kept, w, g, step):
    relative = adafactor(kept, w, g, step) - w
    return w + relative * np.sqrt(step) * RATE


def train_numpy(formula):
    """The parameters after `NUM_STEPS` on one device."""
    params = jax.tree.map(np.asarray, initial())
    leaves, structure = jax.tree.flatten(params)
    kept = [{} for _ in leaves]
    for step, (x, y) in enumerate(batches(NUM_STEPS), start=1):
        tree = jax.tree.unflatten(structure, leaves)
        gradients = jax.tree.leaves(jax.grad(loss)(tree, x, y, len(x)))
        leaves = [
            formula(own, w, np.asarray(g), step).astype(np.float32)
            for own, w, g in zip(kept, leaves, gradients, strict=True)
        ]
    return jax.tree.unflatten(structure, leaves)


def train(make, num_replicas):
    strategy = mirrored(num_replicas)
    training = Training(strategy, optax.identity())
    with strategy.scope():
        training.optimizer = make()
    return training.run(NUM_STEPS)


@pytest.fixture(scope="module")
def expected():
    return {name: train_numpy(formula) for name, (_, formula) in FORMULAS.items()}


@pytest.mark.parametrize("num_replicas", [full_only(1), 2, full_only(3)])
@pytest.mark.parametrize("name", FORMULAS)
def test_an_optimizer_computes_the_documented_formula(name, num_replicas, expected):
    assert_close(train(FORMULAS[name][0], num_replicas), expected[name])


@pytest.mark.parametrize("num_replicas", [1, 2, 3])
def test_global_clipnorm_is_the_norm_of_all_gradients_together(num_replicas):
    plain = train(lambda: optimizers.Optimizer(optax.sgd(RATE), clip_global_norm=0.2), num_replicas)
    assert_close(train(lambda: optimizers.SGD(RATE, global_clipnorm=0.2), num_replicas), plain)


def test_gradients_are_accumulated_under_the_documented_name():
    plain = train(lambda: optimizers.Optimizer(optax.sgd(RATE), accumulate_steps=3), 2)
    assert_close(train(lambda: optimizers.SGD(RATE, gradient_accumulation_steps=3), 2), plain)


@pytest.mark.parametrize("num_replicas", [1, 2, 3])
def test_minimize_takes_the_gradients_and_applies_them(num_replicas):
    strategy = mirrored(num_replicas)
    with strategy.scope():
        w, b = rx.Variable([1.0, 2.0]), rx.Variable(0.0)
        optimizer = optimizers.SGD(0.5)

    @rx.function
    def step(x):
        optimizer.minimize(lambda: jnp.sum(x) * (jnp.sum(w * w) + b), [w, b])

    strategy.run(step, args=(strategy.distribute_batch(np.float32([0.25, 0.125, 0.125])),))
    np.testing.assert_allclose(w.numpy(), [0.5, 1.0])
    np.testing.assert_allclose(b.numpy(), -0.25)


@pytest.mark.parametrize("make", [optimizers.RMSprop, optimizers.Adagrad, optimizers.Lion])
def test_a_schedule_counts_the_updates(make):
    def schedule(step):
        return RATE * (step < 2)

    stopped = train(lambda: make(schedule), 2)
    strategy = mirrored(2)
    training = Training(strategy, optax.identity())
    with strategy.scope():
        training.optimizer = make(RATE)
    training.run(2)
    assert_close(stopped, values_of(training.params))


def test_the_learning_rate_can_be_changed_between_steps():
    strategy = mirrored(2)
    training = Training(strategy, optax.identity())
    with strategy.scope():
        training.optimizer = optimizers.Lion(RATE)
    training.run(3)
    training.optimizer.learning_rate = 0.0
    before, num_traces = values_of(training.params), training._step.trace_count
    assert_close(training.run(3), before)
    assert training._step.trace_count == num_traces


REFUSED = {
    "two clips": (
        lambda: optimizers.Adam(clipnorm=1.0, clipvalue=2.0),
        ValueError,
        "got {'clipnorm': 1.0, 'clipvalue': 2.0}: pass at most one of clipnorm, clipvalue, "
        "global_clipnorm.",
    ),
    "a negative clip": (
        lambda: optimizers.Adam(clipnorm=-1.0),
        ValueError,
        "clipnorm is -1.0; expected a positive number, or None.",
    ),
    "amsgrad": (
        lambda: optimizers.Adam(amsgrad=True),
        TypeError,
        "Adam has no amsgrad=True. Use rx.Optimizer(optax.amsgrad(learning_rate)).",
    ),
    "averages": (
        lambda: optimizers.SGD(use_ema=True),
        TypeError,
        "SGD has no use_ema=True. Keep averages yourself, with optax.incremental_update.",
    ),
    "the older name": (
        lambda: optimizers.SGD(lr=0.1),
        TypeError,
        "SGD has no lr=0.1. Write learning_rate.",
    ),
    "momentum": (
        lambda: optimizers.RMSprop(momentum=1.5),
        ValueError,
        "momentum is 1.5; expected a number from 0 to 1.",
    ),
    "minimize a value": (
        lambda: optimizers.SGD().minimize(0.5, []),
        TypeError,
        "minimize of optimizer 'SGD' got loss=0.5, tape=None. JAX differentiates functions: pass "
        "one without arguments that returns the loss, and no tape.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_an_optimizer_cannot_do_says_what_to_write(case):
    call, error, text = REFUSED[case]
    with pytest.raises(error, match=re.escape(text)):
        call()


def test_documented_arguments_that_are_not_set_are_accepted():
    unset = {"amsgrad": False, "use_ema": False, "ema_momentum": 0.99, "loss_scale_factor": None}
    assert optimizers.Adam(**unset).name == "Adam"
