"""Training in the style of TPUs: a strategy with logical devices, many steps in one program.

Eight virtual devices are two replicas of four logical devices: each replica divides its matrices
among four. TensorFlow has this for TPUs only. Run it with: python examples/tutorials/tpu_style.py
"""

import numpy as np

import replicax as rx
import replicax.tf as tf

EPOCHS, STEPS, BATCH, WIDTH = 4, 5, 16, 32
X = np.random.default_rng(0).normal(size=(STEPS * BATCH, WIDTH)).astype(np.float32)


def new_strategy():
    """Two replicas."""
    rx.set_virtual_devices(8, kind="TPU")
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
    tf.config.experimental_connect_to_cluster(resolver)
    topology = tf.tpu.experimental.initialize_tpu_system(resolver)
    assignment = tf.tpu.experimental.DeviceAssignment.build(
        topology, computation_shape=[1, 1, 2, 2], num_replicas=2
    )
    return tf.distribute.TPUStrategy(resolver, experimental_device_assignment=assignment)


def main():
    """The loss of each epoch."""
    strategy = new_strategy()
    data = tf.data.Dataset.from_tensor_slices(X).batch(BATCH).repeat()
    with strategy.scope():
        w = tf.Variable(tf.zeros([WIDTH, WIDTH]), name="w")

    def train_step(x):
        x = strategy.experimental_split_to_logical_devices(x, [1, 4])

        def loss_fn():
            errors = tf.reduce_mean(tf.square(tf.matmul(x, w) - 2.0 * x), axis=1)
            return tf.nn.compute_average_loss(errors, global_batch_size=BATCH)

        return rx.value_and_grad(loss_fn, w)

    @tf.function
    def train_steps(iterator):
        total = 0.0
        for _ in range(STEPS):
            losses, gradients = strategy.run(train_step, args=(next(iterator),))
            w.assign_sub(2.0 * strategy.reduce("SUM", gradients, axis=None))
            total += strategy.reduce("SUM", losses, axis=None)
        return total / STEPS

    iterator = iter(strategy.experimental_distribute_dataset(data))
    history = []
    for epoch in range(EPOCHS):
        history.append(float(train_steps(iterator)))
        print(f"epoch {epoch}: loss {history[-1]:.6f}")
    return history


if __name__ == "__main__":
    main()
