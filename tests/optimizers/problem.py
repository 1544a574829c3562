"""A small regression, trained by plain Optax on one device and by `Optimizer` on replicas.

20 examples in batches of 8: the last batch of every epoch has 4, which 8 replicas
cannot share evenly.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx
from replicax.optimizers.optimizer import Optimizer
from replicax.optimizers.trees import values_of, variables_from

NUM_EXAMPLES, BATCH = 20, 8

_random = np.random.default_rng(0)
X = _random.normal(size=(NUM_EXAMPLES, 4)).astype(np.float32)
Y = np.sin(X.sum(1, keepdims=True)).astype(np.float32)


def initial():
    """The parameters at the start: a fresh tree of two dense layers."""
    random = np.random.default_rng(1)
    return {
        "hidden": {
            "kernel": jnp.asarray(0.5 * random.normal(size=(4, 6)), jnp.float32),
            "bias": jnp.zeros(6),
        },
        "out": {"kernel": jnp.asarray(0.5 * random.normal(size=(6, 1)), jnp.float32)},
    }


def mirrored(num_replicas, **options):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)], **options)


def central(num_replicas):
    return rx.experimental.CentralStorageStrategy(
        [f"CPU:{i}" for i in range(num_replicas)], "CPU:7"
    )


def batches(num_steps, num_examples=NUM_EXAMPLES):
    """Epoch after epoch; 16 examples make batches of one size."""
    starts = list(range(0, num_examples, BATCH))
    for step in range(num_steps):
        part = slice(starts[step % len(starts)], starts[step % len(starts)] + BATCH)
        yield X[part], Y[part]


def loss(params, x, y, global_batch_size):
    hidden = jnp.tanh(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return jnp.sum((hidden @ params["out"]["kernel"] - y) ** 2) / global_batch_size


def train_plain(
    transformation, num_steps, *, params=None, trained=lambda params: params, **examples
):
    """The parameters after `num_steps` of Optax on one device."""
    params = initial() if params is None else params
    state = transformation.init(params)

    @jax.jit
    def step(params, state, x, y):
        gradients = jax.grad(loss)(trained(params), x, y, len(x))
        updates, state = transformation.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    for x, y in batches(num_steps, **examples):
        params, state = step(params, state, x, y)
    return params


class Training:
    """The same on the replicas of a strategy.

    Attributes:
        params: The variables.
        optimizer: What trains them.
    """

    def __init__(self, strategy, transformation, *, compiled=True, params=None, **options):
        self.strategy = strategy
        with strategy.scope():
            self.params = variables_from(initial() if params is None else params)
            self.optimizer = Optimizer(transformation, **options)
        self.trained = self.params
        if isinstance(self.params, optax.LookaheadParams):
            self.trained = self.params.fast
            self.optimizer.build(self.params)
        self._step = rx.function(self.step) if compiled else self.step

    def step(self, x, y, global_batch_size):
        gradients = rx.grad(lambda: loss(self.trained, x, y, global_batch_size), self.trained)
        self.optimizer.apply_gradients([(gradients, self.trained)])

    def run(self, num_steps, **examples):
        """The parameters after `num_steps`."""
        for x, y in batches(num_steps, **examples):
            args = (*self.strategy.distribute_batch((x, y)), float(len(x)))
            self.strategy.run(self._step, args=args)
        return values_of(self.params)


def assert_close(actual, expected):
    """Within 1e-5 x max(1, |value|), leaf by leaf."""
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for one, other in pairs:
        one, other = np.asarray(one), np.asarray(other)
        assert np.all(np.isfinite(one))
        error = np.abs(one - other) / np.maximum(1, np.abs(other))
        assert error.max() <= 1e-5, (error.max(), one, other)
