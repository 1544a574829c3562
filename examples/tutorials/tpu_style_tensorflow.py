"""The twin of tpu_style.py for TensorFlow, which divides a replica on TPUs only."""

import numpy as np
import tensorflow as tf

EPOCHS, STEPS, BATCH, WIDTH = 4, 5, 16, 32
X = np.random.default_rng(0).normal(size=(STEPS * BATCH, WIDTH)).astype(np.float32)


def new_strategy():
    """Two replicas."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def main():
    """The loss of each epoch."""
    strategy = new_strategy()
    data = tf.data.Dataset.from_tensor_slices(X).batch(BATCH).repeat()
    with strategy.scope():
        w = tf.Variable(tf.zeros([WIDTH, WIDTH]), name="w")

    def train_step(x):
        with tf.GradientTape() as tape:
            errors = tf.reduce_mean(tf.square(tf.matmul(x, w) - 2.0 * x), axis=1)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=BATCH)
        return loss, tape.gradient(loss, w)

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
