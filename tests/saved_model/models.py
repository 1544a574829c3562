"""The model that the tests of saved models train, save and load, under any strategy."""

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

NUM_EXAMPLES = 16


def data(seed=0):
    """A global batch that every layout of replicas divides evenly, and one that none does."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(NUM_EXAMPLES, 4)).astype(np.float32)
    return x, np.stack([np.sin(x.sum(1)), np.cos(x[:, 0])], axis=1).astype(np.float32)


class Model:
    """Two layers, a count of steps, and statistics that each replica keeps for itself."""

    def __init__(self):
        rng = np.random.default_rng(1)
        self.w = rx.Variable(rng.normal(size=(4, 8)).astype(np.float32), name="w")
        self.layers = [rx.Variable(rng.normal(size=(8, 2)).astype(np.float32), name="out")]
        self.seen = rx.Variable(
            0,
            False,
            synchronization=rx.VariableSynchronization.ON_READ,
            aggregation=rx.VariableAggregation.SUM,
        )

    @property
    def trainable_variables(self):
        return (self.layers[0], self.w)

    @rx.function(input_signature=[rx.TensorSpec([None, 4])])
    def predict(self, x):
        return jnp.tanh(x @ self.w) @ self.layers[0]

    @rx.function(input_signature=[rx.TensorSpec([None, 4]), rx.TensorSpec([None, 2])])
    def loss(self, x, y):
        self.seen.assign_add(x.shape[0])
        return jnp.sum((self.predict(x) - y) ** 2, axis=1)


def train(strategy, model, num_steps):
    """Trains `model`, made by `Model` or loaded; gives the losses."""
    variables = model.trainable_variables
    with strategy.scope():
        optimizer = rx.optimizers.SGD(0.05)

    @rx.function
    def step(x, y):
        def loss_fn():
            return rx.compute_average_loss(model.loss(x, y), global_batch_size=NUM_EXAMPLES)

        loss, gradients = rx.value_and_grad(loss_fn, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    losses = []
    for number in range(num_steps):
        batch = tuple(strategy.distribute_batch(part) for part in data(number))
        losses.append(float(strategy.reduce("SUM", strategy.run(step, args=batch), axis=None)))
    jax.block_until_ready([v.value for v in variables])
    return losses


def predict(strategy, model):
    """The predictions for one batch, in its order."""
    x, _ = data(100)
    parts = strategy.run(model.predict, args=(strategy.distribute_batch(x),))
    return np.asarray(strategy.gather(parts, axis=0))
