"""The same training program on one worker or on many: ``TF_CONFIG`` says which worker this is.

Every worker runs this file. Alone, without ``TF_CONFIG``, it is a cluster of one:

    python examples/multi_worker.py

Two workers on this machine, each with one device:

    replicax launch --workers 2 --devices-per-worker 1 examples/multi_worker.py
"""

import numpy as np

import replicax as rx
import replicax.tf as tf

GLOBAL_BATCH_SIZE = 32
EPOCHS = 40
TRUE_WEIGHTS = np.array([[2.0], [-3.0]], np.float32)


def make_dataset():
    """The whole dataset, the same on every worker; each worker reads its part of it."""
    inputs = np.random.default_rng(0).normal(size=(250, 2)).astype(np.float32)
    targets = inputs @ TRUE_WEIGHTS + 1.0
    return tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(GLOBAL_BATCH_SIZE)


def train(strategy):
    """Trains a linear model; returns its weights and bias, the same on every worker."""
    with strategy.scope():
        weights = tf.Variable(tf.zeros((2, 1)), name="weights")
        bias = tf.Variable(0.0, name="bias")
        optimizer = rx.optimizers.SGD(0.1)
        mean_loss = rx.metrics.Mean()
    variables = [weights, bias]

    @tf.function
    def step(inputs, targets):
        def loss_fn():
            errors = inputs @ weights + bias - targets
            per_example = tf.reduce_sum(errors * errors, axis=1)
            return tf.nn.compute_average_loss(per_example), per_example

        (_, per_example), gradients = rx.value_and_grad(loss_fn, variables, has_aux=True)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        mean_loss.update_state(per_example)

    dataset = strategy.experimental_distribute_dataset(make_dataset())
    for _ in range(EPOCHS):
        mean_loss.reset_state()
        for inputs, targets in dataset:
            strategy.run(step, args=(inputs, targets))
    if strategy.is_chief:  # only one worker speaks for all
        print(f"loss {float(mean_loss.result()):.2e}")
    else:
        mean_loss.result()  # all workers take part in it
    return weights.numpy(), bias.numpy()


def main():
    """What every task of the cluster runs."""
    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    task_type = strategy.cluster_resolver.task_type
    if task_type in (None, "", "chief", "worker"):
        weights, bias = train(strategy)
        np.testing.assert_allclose(weights, TRUE_WEIGHTS, atol=1e-2)
        count = strategy.num_replicas_in_sync
        print(f"{count} replicas, weights {weights.ravel()}, bias {bias:.3f}")
    elif task_type == "ps":
        print("a parameter server takes no part in this training")


if __name__ == "__main__":
    main()
