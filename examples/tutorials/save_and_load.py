"""Saves a model that was trained on four replicas, and loads it on two, and without a strategy.

Run it with: python examples/tutorials/save_and_load.py
"""

import tempfile

import jax.numpy as jnp
import numpy as np

import replicax as rx
import replicax.tf as tf

EPOCHS, BATCH = 4, 32
X = np.random.default_rng(0).normal(size=(128, 3)).astype(np.float32)
Y = np.tanh(X @ np.float32([[1], [-2], [3]]))


class Model:
    def __init__(self):
        self.w = tf.Variable(tf.zeros([3, 1]), name="w")

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def predict(self, x):
        return jnp.tanh(tf.matmul(x, self.w))


def train(strategy, model):
    """The loss of each epoch."""
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    data = strategy.experimental_distribute_dataset(data)

    def train_step(inputs):
        x, y = inputs

        def loss_fn():
            errors = tf.reduce_sum(tf.square(model.predict(x) - y), axis=1)
            return tf.nn.compute_average_loss(errors, global_batch_size=BATCH)

        return rx.value_and_grad(loss_fn, model.w)

    @tf.function
    def distributed_step(batch):
        losses, gradients = strategy.run(train_step, args=(batch,))
        model.w.assign_sub(0.1 * strategy.reduce("SUM", gradients, axis=None))
        return strategy.reduce("SUM", losses, axis=None)

    history = []
    for epoch in range(EPOCHS):
        losses = [float(distributed_step(batch)) for batch in data]
        history.append(sum(losses) / len(losses))
        print(f"epoch {epoch}: loss {history[-1]:.6f}")
    return history


def main():
    """The loss of each epoch, before and after the model was saved and loaded."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    four = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(4)])
    with four.scope():
        model = Model()
    history = train(four, model)
    path = f"{tempfile.mkdtemp()}/model"
    tf.saved_model.save(model, path)

    loaded = tf.saved_model.load(path)
    print("without a strategy:", np.asarray(loaded.predict(X[:2])).round(3).ravel())
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with two.scope():
        again = tf.saved_model.load(path)
    print("trains on:")
    return history + train(two, again)


if __name__ == "__main__":
    main()
