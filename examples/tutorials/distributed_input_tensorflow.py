"""The twin of distributed_input.py for TensorFlow."""

import numpy as np
import tensorflow as tf

EPOCHS, BATCH, EXAMPLES = 4, 24, 120


def pipeline():
    """Single examples: three features and what to predict from them."""
    x = np.random.default_rng(0).normal(size=(EXAMPLES, 3)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x @ np.float32([[1], [-2], [3]])))


def dataset_fn(context):
    """Called once on each worker, which takes its own examples and the size of its batches."""
    size = context.get_per_replica_batch_size(BATCH)
    data = pipeline().shard(context.num_input_pipelines, context.input_pipeline_id)
    return data.batch(size)


def main():
    """The loss of each epoch, first of one way and then of the other."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(4)])
    with strategy.scope():
        w = tf.Variable(tf.zeros([3, 1]), name="w")

    def train_step(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            errors = tf.reduce_sum(tf.square(tf.matmul(x, w) - y), axis=1)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=BATCH)
        return loss, tape.gradient(loss, w)

    @tf.function
    def distributed_step(batch):
        losses, gradients = strategy.run(train_step, args=(batch,))
        w.assign_sub(0.05 * strategy.reduce("SUM", gradients, axis=None))
        return strategy.reduce("SUM", losses, axis=None)

    history = []
    for name, data in (
        ("global batches", strategy.experimental_distribute_dataset(pipeline().batch(BATCH))),
        ("a function", strategy.distribute_datasets_from_function(dataset_fn)),
    ):
        print(f"{name}: {data.element_spec[0]}")
        w.assign(tf.zeros([3, 1]))
        for epoch in range(EPOCHS):
            losses = [float(distributed_step(batch)) for batch in data]
            history.append(sum(losses) / len(losses))
            print(f"epoch {epoch}: loss {history[-1]:.6f}")
    return history


if __name__ == "__main__":
    main()
