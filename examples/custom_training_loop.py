"""A custom training loop in the documents' spelling: scope, run, reduce, metrics, uneven batches.

Linear regression on virtual devices. The replica function computes a loss and its
gradients, an optimizer applies them for all replicas in ``merge_call``, and a metric
counts in sync-on-read variables. Run it with: python examples/custom_training_loop.py
"""

import numpy as np

import replicax as rx
import replicax.tf as tf

NUM_REPLICAS = 4
GLOBAL_BATCH_SIZE = 32
EPOCHS = 30
TRUE_WEIGHTS = np.array([[2.0], [-3.0]], np.float32)


class GradientDescent:
    """An optimizer as libraries write it: called in a replica, it acts for all of them."""

    def __init__(self, learning_rate):
        self._learning_rate = learning_rate

    def apply_gradients(self, gradients, variables):
        replica = tf.distribute.get_replica_context()
        replica.merge_call(self._apply, args=(gradients, variables))

    def _apply(self, strategy, gradients, variables):
        pairs = list(zip(gradients, variables, strict=True))
        reduced = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)
        for gradient, variable in zip(reduced, variables, strict=True):
            strategy.extended.update(variable, self._update, args=(gradient,))

    def _update(self, variable, gradient):
        variable.assign_sub(self._learning_rate * gradient)


class Mean:
    """A metric: every replica adds to its own totals, a read outside ``run`` sums them."""

    def __init__(self):
        self._total, self._count = (
            tf.Variable(
                0.0,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )
            for _ in range(2)
        )

    def update_state(self, values):
        self._total.assign_add(tf.reduce_sum(values))
        self._count.assign_add(len(values))

    def result(self):
        return float(self._total / self._count)

    def reset_state(self):
        self._total.assign(0.0)
        self._count.assign(0.0)


def make_data(num_examples=200):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_examples, 2)).astype(np.float32)
    return x, x @ TRUE_WEIGHTS + 1.0


def train(strategy):
    """The trained weights and bias, and the mean squared error of each epoch."""
    with strategy.scope():
        weights = tf.Variable(tf.zeros([2, 1]))
        bias = tf.Variable(0.0)
        error = Mean()
        optimizer = GradientDescent(learning_rate=0.1)

    def replica_fn(x, y, batch_size):
        def loss_fn():
            squares = tf.reduce_sum(tf.square(x @ weights + bias - y), axis=1)
            return tf.reduce_sum(squares) / batch_size, squares

        # What tf.GradientTape is for; JAX differentiates functions.
        (loss, squares), gradients = rx.value_and_grad(loss_fn, [weights, bias], has_aux=True)
        optimizer.apply_gradients(gradients, [weights, bias])
        error.update_state(squares)
        return loss

    @tf.function
    def train_step(x, y, batch_size):
        losses = strategy.run(replica_fn, args=(x, y, batch_size))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    x, y = make_data()
    history = []
    for _ in range(EPOCHS):
        error.reset_state()
        for start in range(0, len(x), GLOBAL_BATCH_SIZE):
            batch = x[start : start + GLOBAL_BATCH_SIZE], y[start : start + GLOBAL_BATCH_SIZE]
            # The size of this batch, as a float: it is traced, and the last one is smaller.
            train_step(*strategy.distribute_batch(batch), float(len(batch[0])))
        history.append(error.result())
    return weights.numpy(), bias.numpy(), history


def main():
    rx.set_virtual_devices(NUM_REPLICAS)
    strategy = tf.distribute.MirroredStrategy()
    print(strategy.describe())
    weights, bias, history = train(strategy)
    print(f"mean squared error: {history[0]:.3f} in the first epoch, {history[-1]:.1e} in the last")
    print(f"weights {weights.ravel().round(3)}, bias {bias:.3f}")


if __name__ == "__main__":
    main()
