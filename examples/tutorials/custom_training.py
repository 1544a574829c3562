"""A training loop of one's own: a ConvNet of Keras, metrics, evaluation, checkpoints.

Run it with: python examples/tutorials/custom_training.py
"""

import tempfile

import numpy as np

import replicax as rx
import replicax.tf as tf

EPOCHS, BATCH = 5, 32


def images(seed, count):
    """Pictures of 8 x 8 pixels with a bright line in one of four rows, and the row."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 4, count)
    pictures = random.normal(scale=0.5, size=(count, 8, 8, 1)).astype(np.float32)
    pictures[np.arange(count), 2 * labels] += 1.0
    return pictures, labels


def convnet():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(8, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(4),
        ]
    )
    random = np.random.default_rng(2)  # weights that do not depend on the library
    for weight in model.weights:
        weight.assign(random.normal(scale=0.2, size=weight.shape))
    return model


def main():
    """The loss of each epoch."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(4)])
    train = tf.data.Dataset.from_tensor_slices(images(0, 200)).batch(BATCH)
    test = tf.data.Dataset.from_tensor_slices(images(1, 100)).batch(BATCH)
    train = strategy.experimental_distribute_dataset(train)
    test = strategy.experimental_distribute_dataset(test)

    with strategy.scope():
        model = convnet()
        optimizer = tf.keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)
        loss_object = tf.keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction=None
        )
        test_loss = tf.keras.metrics.Mean()
        test_accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
        checkpoint = tf.train.Checkpoint(optimizer=optimizer, model=model)

    def train_step(inputs):
        x, y = inputs

        def loss_fn():
            losses = loss_object(y, model(x, training=True))
            return tf.nn.compute_average_loss(losses, global_batch_size=BATCH)

        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def test_step(inputs):
        x, y = inputs
        logits = model(x, training=False)
        test_loss.update_state(loss_object(y, logits))
        test_accuracy.update_state(y, logits)

    @tf.function
    def distributed_train_epoch(data):
        total, batches = 0.0, 0.0
        for batch in data:  # inside the function
            losses = strategy.run(train_step, args=(batch,))
            total += strategy.reduce("SUM", losses, axis=None)
            batches += 1.0
        return total / batches

    @tf.function
    def distributed_test_step(batch):
        strategy.run(test_step, args=(batch,))

    folder = tempfile.mkdtemp()
    history = []
    for epoch in range(EPOCHS):
        history.append(float(distributed_train_epoch(train)))
        print(f"epoch {epoch}: loss {history[-1]:.6f}")
        for batch in test:
            distributed_test_step(batch)
        print(f"  new images: {float(test_loss.result()):.3f}, {float(test_accuracy.result()):.2f}")
        test_loss.reset_state()
        test_accuracy.reset_state()
        checkpoint.save(f"{folder}/ckpt")

    model.trainable_variables[0].assign(np.zeros((3, 3, 1, 8)))
    checkpoint.restore(tf.train.latest_checkpoint(folder))
    for batch in test:
        distributed_test_step(batch)
    print(f"restored: {float(test_accuracy.result()):.2f} of the new images are right")
    return history


if __name__ == "__main__":
    main()
