"""A model on two parameter servers, trained by a worker that gets closures from a coordinator.

All tasks are in this process. Run it with: python examples/tutorials/parameter_server.py
"""

import numpy as np

import replicax as rx
import replicax.tf as tf

EPOCHS, STEPS, BATCH = 5, 20, 16
X = np.random.default_rng(0).normal(size=(STEPS * BATCH, 3)).astype(np.float32)
Y = X @ np.float32([[1], [-2], [3]])


def start_cluster():
    """Two servers and a worker: of Replicax, parts of this process need no server."""
    cluster = {"ps": ["localhost:2001", "localhost:2002"], "worker": ["localhost:3001"]}
    return tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster))


def main():
    """The loss of each epoch."""
    sharded = tf.distribute.experimental.partitioners.FixedShardsPartitioner(num_shards=2)
    strategy = tf.distribute.ParameterServerStrategy(start_cluster(), variable_partitioner=sharded)
    with strategy.scope():
        w = tf.Variable(tf.zeros([3, 1]), name="w")  # two rows on one server, one on the other
        bias = tf.Variable(tf.zeros([]), name="bias")
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def dataset_fn():
        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH).repeat()

    per_worker = coordinator.create_per_worker_dataset(dataset_fn)
    batches = iter(per_worker)

    @tf.function
    def train_step(batches):
        def replica_fn(x, y):
            def loss_fn():
                predicted = tf.matmul(x, w) + bias
                return tf.reduce_mean(tf.square(predicted - y))

            loss, gradients = rx.value_and_grad(loss_fn, [w, bias])
            for variable, gradient in zip([w, bias], gradients, strict=True):
                variable.assign_sub(0.03 * gradient)
            return loss

        losses = strategy.run(replica_fn, args=next(batches))
        return strategy.reduce("SUM", losses, axis=None)

    history = []
    for epoch in range(EPOCHS):
        losses = [coordinator.schedule(train_step, args=(batches,)) for _ in range(STEPS)]
        coordinator.join()
        history.append(np.mean([loss.fetch() for loss in losses]))
        print(f"epoch {epoch}: loss {history[-1]:.6f}")
    return history


if __name__ == "__main__":
    main()
