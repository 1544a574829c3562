"""The programs of the documents' guide to parameter servers, in our own words and data."""

import numpy as np
import pytest

import replicax.tf as tf


def resolver():
    cluster_spec = tf.train.ClusterSpec(
        {
            "worker": ["localhost:1", "localhost:2", "localhost:3"],
            "ps": ["localhost:4", "localhost:5"],
        }
    )
    return tf.distribute.cluster_resolver.SimpleClusterResolver(cluster_spec, rpc_layer="grpc")


@pytest.mark.parametrize(
    "spelling", [tf.distribute, tf.distribute.experimental], ids=["stable", "experimental"]
)
def test_a_custom_loop_with_datasets_of_each_worker(spelling):
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=(256 << 10), max_shards=2
    )
    strategy = spelling.ParameterServerStrategy(resolver(), variable_partitioner=partitioner)
    batch_size = 16
    with strategy.scope():
        weights = tf.Variable(np.zeros((3, 1), np.float32), name="weights")
        accuracy_sum = tf.Variable(0.0)

    def dataset_fn():
        random = np.random.default_rng(0)
        features = random.integers(0, 2, size=(64, 3)).astype(np.float32)
        labels = features[:, :1]
        dataset = tf.data.Dataset.from_tensor_slices((features, labels))
        return dataset.shuffle(64).batch(batch_size).repeat()

    coordinator = spelling.coordinator.ClusterCoordinator(strategy)
    per_worker_dataset = coordinator.create_per_worker_dataset(dataset_fn)
    per_worker_iterator = iter(per_worker_dataset)

    @tf.function
    def step_fn(iterator):
        def replica_fn(features, labels):
            error = features @ weights - labels
            weights.assign_sub(0.3 * features.T @ error / batch_size)
            accuracy_sum.assign_add(tf.reduce_mean(tf.cast(error * error < 0.25, tf.float32)))
            return tf.reduce_mean(error * error)

        batch_data, labels = next(iterator)
        losses = strategy.run(replica_fn, args=(batch_data, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    final_losses = []
    for _ in range(4):
        for _ in range(5):
            value = coordinator.schedule(step_fn, args=(per_worker_iterator,))
        coordinator.join()
        final_losses.append(float(value.fetch()))
    assert final_losses[-1] < final_losses[0] / 5
    assert 0 < float(accuracy_sum) <= 20
    assert coordinator.done()


def test_a_module_whose_table_is_cut():
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    strategy = tf.distribute.ParameterServerStrategy(resolver(), partitioner)

    class Dense:  # the guide's is a tf.Module, which Python objects need not be here
        def __init__(self):
            self.w = tf.Variable(np.ones((100, 10), np.float32), name="w")

        def __call__(self, x):
            return x * self.w

    with strategy.scope():
        dense = Dense()
    assert dense.w.shard_shapes == ((50, 10), (50, 10))
    assert float((dense.w + 1.0)[99, 9]) == 2
    assert dense.w[np.array([0, 99])].shape == (2, 10)

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    value = coordinator.schedule(tf.function(lambda x: tf.reduce_sum(dense(x))), args=(2.0,))
    assert float(value.get()) == 2000


def test_fetch_of_a_nest_and_an_error_at_join():
    strategy = tf.distribute.ParameterServerStrategy(resolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    values = [coordinator.schedule(tf.function(lambda x: x * x), args=(i * 1.0,)) for i in range(4)]
    assert coordinator.fetch(values) == [0, 1, 4, 9]
    iterator = iter(coordinator.create_per_worker_dataset(lambda: [np.float32(1)]))
    with pytest.raises(tf.errors.OutOfRangeError, match="has ended"):
        for _ in range(8):
            coordinator.schedule(lambda it: next(it), args=(iterator,))
        coordinator.join()
