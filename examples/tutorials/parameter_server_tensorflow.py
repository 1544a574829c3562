"""The twin of parameter_server.py for TensorFlow."""

import socket

import numpy as np
import tensorflow as tf

EPOCHS, STEPS, BATCH = 5, 20, 16
X = np.random.default_rng(0).normal(size=(STEPS * BATCH, 3)).astype(np.float32)
Y = X @ np.float32([[1], [-2], [3]])


def start_cluster():
    """Two servers and a worker, each a server of TensorFlow's on a port."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(3)]
    first, second, third = [f"localhost:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    cluster = tf.train.ClusterSpec({"ps": [first, second], "worker": [third]})
    for job, index in (("worker", 0), ("ps", 0), ("ps", 1)):
        tf.distribute.Server(cluster, job_name=job, task_index=index, protocol="grpc")
    return tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")


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
            with tf.GradientTape() as tape:
                predicted = tf.matmul(x, w) + bias
                loss = tf.reduce_mean(tf.square(predicted - y))
            parts = [*w.variables, bias]  # the whole has no gradient
            for variable, gradient in zip(parts, tape.gradient(loss, parts), strict=True):
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
