"""A layer that knows about replicas: batch norm over the global batch.

Ordinary batch norm would normalise each replica's share by itself, and the result
would depend on the number of replicas. This one adds up the statistics of all shares
with ``all_reduce``, so that 1 and 8 replicas compute the same, gradients included, also
when the last batch does not divide evenly. Run it with: python examples/sync_batch_norm.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

NUM_REPLICAS = 8


class SyncBatchNorm:
    """Normalises every feature over the examples of all replicas.

    Create it in a strategy's scope, and call it inside ``run``; without a strategy it
    is ordinary batch norm.
    """

    def __init__(self, num_features, *, momentum=0.9, epsilon=1e-5):
        self._momentum = momentum
        self._epsilon = epsilon
        self.scale = rx.Variable(jnp.ones(num_features), name="scale")
        self.offset = rx.Variable(jnp.zeros(num_features), name="offset")
        # Every replica assigns the same value, so that of the first one will do.
        keep_first = rx.VariableAggregation.ONLY_FIRST_REPLICA
        self.mean = rx.Variable(
            jnp.zeros(num_features), trainable=False, aggregation=keep_first, name="mean"
        )
        self.variance = rx.Variable(
            jnp.ones(num_features), trainable=False, aggregation=keep_first, name="variance"
        )

    def __call__(self, x, *, training):
        mean, variance = self._batch_moments(x) if training else (self.mean, self.variance)
        normalised = (x - mean) * jax.lax.rsqrt(variance + self._epsilon)
        return normalised * self.scale + self.offset

    def _batch_moments(self, x):
        replica = rx.get_replica_context()
        count, total = replica.all_reduce(rx.ReduceOp.SUM, (float(len(x)), x.sum(axis=0)))
        mean = total / count
        # Around the global mean: a mean of squares minus a squared mean would cancel digits.
        squares = replica.all_reduce(rx.ReduceOp.SUM, jnp.square(x - mean).sum(axis=0))
        variance = squares / count
        self._follow(self.mean, mean)
        self._follow(self.variance, variance)
        return mean, variance

    def _follow(self, average, value):
        average.assign(self._momentum * average + (1.0 - self._momentum) * value)


def normalise(strategy, batch):
    """The normalised batch, the gradient of a loss of it, and the running mean."""
    with strategy.scope():
        layer = SyncBatchNorm(batch.shape[1])

    def replica_fn(x):
        def loss_fn():
            y = layer(x, training=True)
            return jnp.sum(jnp.tanh(y) ** 2), y

        (_, y), gradients = rx.value_and_grad(loss_fn, [layer.scale, layer.offset], has_aux=True)
        return y, rx.get_replica_context().all_reduce(rx.ReduceOp.SUM, gradients)

    @rx.function
    def step(x):
        return strategy.run(replica_fn, args=(x,))

    y, gradients = step(strategy.distribute_batch(batch))
    return (
        np.asarray(strategy.gather(y, axis=0)),
        np.stack([np.asarray(gradient) for gradient in gradients]),
        layer.mean.numpy(),
    )


def main():
    rx.set_virtual_devices(NUM_REPLICAS)
    batch = np.random.default_rng(0).normal(3.0, 2.0, size=(30, 4)).astype(np.float32)
    many = normalise(rx.MirroredStrategy(), batch)
    one = normalise(rx.OneDeviceStrategy("CPU:0"), batch)
    print(f"mean {many[0].mean(axis=0).round(3)}, deviation {many[0].std(axis=0).round(3)}")
    for name, a, b in zip(("outputs", "gradients", "running mean"), many, one, strict=True):
        print(f"{name}: {NUM_REPLICAS} replicas and one device differ by {np.abs(a - b).max():.1e}")


if __name__ == "__main__":
    main()
