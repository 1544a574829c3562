"""The examples of the document on DistributedValues; see `strategy_examples`.

A batch has 2 examples, as there: with 4 or 8 replicas most get an empty part.
"""

import numpy as np

import replicax.tf as tf
from tests.tf.comparing import assert_result, assert_tensor, parts_of

FIRST_BATCH = np.array([10.0, 20.0], np.float32)


def created_from_a_distributed_dataset(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)
    dataset = tf.data.Dataset.from_tensor_slices([10.0, 20.0, 30.0, 40.0]).batch(2)
    dataset_iterator = iter(strategy.experimental_distribute_dataset(dataset))
    distributed_values = next(dataset_iterator)
    assert_result(strategy, distributed_values, parts_of(strategy, FIRST_BATCH), tf.float32)


def returned_by_run(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)

    @tf.function
    def run():
        ctx = tf.distribute.get_replica_context()
        return ctx.replica_id_in_sync_group

    distributed_values = strategy.run(run)
    n = strategy.num_replicas_in_sync
    if n > 1:
        assert_result(strategy, distributed_values, list(range(n)), tf.int32)
    assert [int(v) for v in strategy.experimental_local_results(distributed_values)] == [*range(n)]


def as_input_into_run(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)
    dataset = tf.data.Dataset.from_tensor_slices([10.0, 20.0, 30.0, 40.0]).batch(2)
    dataset_iterator = iter(strategy.experimental_distribute_dataset(dataset))
    distributed_values = next(dataset_iterator)

    @tf.function
    def run(input):
        return input + 1.0

    updated_value = strategy.run(run, args=(distributed_values,))
    assert_result(
        strategy, updated_value, [c + 1.0 for c in parts_of(strategy, FIRST_BATCH)], tf.float32
    )


def reduce_value(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)
    dataset = tf.data.Dataset.from_tensor_slices([10.0, 20.0, 30.0, 40.0]).batch(2)
    dataset_iterator = iter(strategy.experimental_distribute_dataset(dataset))
    distributed_values = next(dataset_iterator)
    reduced_value = strategy.reduce(tf.distribute.ReduceOp.SUM, distributed_values, axis=0)
    assert_tensor(reduced_value, FIRST_BATCH.sum(), tf.float32)


def inspect_per_replica_values(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)
    dataset = tf.data.Dataset.from_tensor_slices([10.0, 20.0, 30.0, 40.0]).batch(2)
    dataset_iterator = iter(strategy.experimental_distribute_dataset(dataset))
    distributed_values = next(dataset_iterator)
    per_replica_values = strategy.experimental_local_results(distributed_values)
    assert isinstance(per_replica_values, tuple)
    for value, chunk in zip(per_replica_values, parts_of(strategy, FIRST_BATCH), strict=True):
        assert_tensor(value, chunk, tf.float32)


def created_as_variables(devices=None):
    """The text: creating a variable in a scope gives an instance of a subclass."""
    strategy = tf.distribute.MirroredStrategy(devices)
    with strategy.scope():
        on_update = tf.Variable([1.0, 2.0])
        on_demand = tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    assert isinstance(on_update, tf.distribute.DistributedValues)
    assert isinstance(on_demand, tf.distribute.DistributedValues)

    @tf.function
    def replica_fn(weights):
        on_demand.assign_add(tf.reduce_sum(weights))

    strategy.run(replica_fn, args=(on_update,))
    assert on_demand.numpy() == 3.0 * strategy.num_replicas_in_sync


EXAMPLES = (
    created_from_a_distributed_dataset,
    returned_by_run,
    as_input_into_run,
    reduce_value,
    inspect_per_replica_values,
    created_as_variables,
)
