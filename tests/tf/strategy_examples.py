"""The examples of the documents on Strategy and ValueContext, with our own data.

Each function makes the calls of one example, in its order, on `devices` (None is
the documents' ``MirroredStrategy()``: every device there is), and checks the
results for any number of replicas. `EXAMPLES` lists them; nothing here needs
pytest, so that a fresh process can run them too.
"""

import numpy as np

import replicax.tf as tf
from tests.tf.comparing import assert_result, assert_tensor


def value_context_directly_constructed(devices=None):
    def value_fn(context):
        return context.replica_id_in_sync_group / context.num_replicas_in_sync

    context = tf.distribute.experimental.ValueContext(
        replica_id_in_sync_group=3, num_replicas_in_sync=4
    )
    per_replica_value = value_fn(context)
    assert per_replica_value == 0.75


def value_context_passed_in(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)

    def value_fn(value_context):
        assert isinstance(value_context, tf.distribute.ValueContext)
        return value_context.num_replicas_in_sync

    distributed_values = strategy.experimental_distribute_values_from_function(value_fn)
    local_result = strategy.experimental_local_results(distributed_values)
    n = strategy.num_replicas_in_sync
    assert local_result == (n,) * n
    assert isinstance(distributed_values, tf.distribute.DistributedValues)


def constant_value_per_replica(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)

    def value_fn(ctx):
        return tf.constant(7.0)

    distributed_values = strategy.experimental_distribute_values_from_function(value_fn)
    local_result = strategy.experimental_local_results(distributed_values)
    assert len(local_result) == strategy.num_replicas_in_sync
    for value in local_result:
        assert_tensor(value, 7.0, tf.float32)


def values_of_an_array_by_replica_id(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)
    array_value = np.array([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0])

    def value_fn(ctx):
        return array_value[ctx.replica_id_in_sync_group]

    distributed_values = strategy.experimental_distribute_values_from_function(value_fn)
    local_result = strategy.experimental_local_results(distributed_values)
    assert local_result == tuple(array_value[: strategy.num_replicas_in_sync])
    assert all(np.shape(value) == () for value in local_result)


def values_by_num_replicas_in_sync(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)

    def value_fn(ctx):
        return ctx.num_replicas_in_sync

    distributed_values = strategy.experimental_distribute_values_from_function(value_fn)
    local_result = strategy.experimental_local_results(distributed_values)
    n = strategy.num_replicas_in_sync
    assert local_result == (n,) * n


def values_placed_on_devices(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)
    worker_devices = strategy.extended.worker_devices
    multiple_values = []
    for i in range(strategy.num_replicas_in_sync):
        with tf.device(worker_devices[i]):
            multiple_values.append(tf.constant(2.0))

    def value_fn(ctx):
        return multiple_values[ctx.replica_id_in_sync_group]

    distributed_values = strategy.experimental_distribute_values_from_function(value_fn)

    n = strategy.num_replicas_in_sync
    assert len({device for value in multiple_values for device in value.devices()}) == n
    local_result = strategy.experimental_local_results(distributed_values)
    assert all(one is other for one, other in zip(local_result, multiple_values, strict=True))
    total = strategy.reduce(tf.distribute.ReduceOp.SUM, distributed_values, axis=None)
    assert_tensor(total, 2.0 * n, tf.float32)


def run_with_a_constant_tensor(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)
    tensor_input = tf.constant(4.0)

    @tf.function
    def replica_fn(input):
        return input * 2.0

    result = strategy.run(replica_fn, args=(tensor_input,))
    assert_result(strategy, result, [8.0] * strategy.num_replicas_in_sync, tf.float32)


def run_with_distributed_values(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)

    @tf.function
    def run():
        def value_fn(value_context):
            return value_context.num_replicas_in_sync

        distributed_values = strategy.experimental_distribute_values_from_function(value_fn)

        def replica_fn2(input):
            return input * 2

        return strategy.run(replica_fn2, args=(distributed_values,))

    result = run()
    n = strategy.num_replicas_in_sync
    assert_result(strategy, result, [2 * n] * n, tf.int32)


def scope_creates_mirrored_variables(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)
    # Variable created inside scope:
    with strategy.scope():
        mirrored_variable = tf.Variable(1.5)
    # Variable created outside scope:
    regular_variable = tf.Variable(1.5)

    n = strategy.num_replicas_in_sync
    assert isinstance(mirrored_variable, tf.distribute.DistributedValues)
    copies = strategy.experimental_local_results(mirrored_variable)
    assert [(c.numpy(), c.shape, c.dtype) for c in copies] == [(1.5, (), tf.float32)] * n
    assert len(mirrored_variable.devices()) == n
    assert not isinstance(regular_variable, tf.distribute.DistributedValues)
    assert (regular_variable.numpy(), regular_variable.dtype) == (1.5, tf.float32)
    assert len(regular_variable.devices()) == 1
    assert repr(mirrored_variable).startswith("MirroredVariable:{\n  0: <")
    assert not repr(regular_variable).startswith("MirroredVariable")


def scope_installs_the_strategy(devices=None):
    """What the text says happens when a scope is entered, and what works outside it."""
    strategy = tf.distribute.MirroredStrategy(devices)
    with strategy.scope():
        assert tf.distribute.get_strategy() is strategy
        assert tf.distribute.in_cross_replica_context()
        assert tf.distribute.get_replica_context() is None
        v = tf.Variable(3.0)
    assert tf.distribute.get_strategy() is not strategy
    assert not tf.distribute.has_strategy()
    v.assign(4.0)  # reading and writing work without the scope
    assert v.numpy() == 4.0
    assert all(copy.numpy() == 4.0 for copy in strategy.experimental_local_results(v))

    def replica_fn():  # run and reduce enter the scope themselves
        assert tf.distribute.get_strategy() is strategy
        return tf.constant(1) + tf.distribute.get_replica_context().replica_id_in_sync_group

    ids = strategy.run(replica_fn)
    n = strategy.num_replicas_in_sync
    assert_tensor(strategy.reduce("sum", ids, axis=None), n * (n + 1) // 2, tf.int32)


def reduce_with_and_without_an_axis(devices=None):
    """The numbers of the text on ``reduce``: 8 examples on 2 replicas, for any count."""
    strategy = tf.distribute.MirroredStrategy(devices)
    n = strategy.num_replicas_in_sync

    def value_fn(ctx):
        return tf.range(4 * ctx.replica_id_in_sync_group, 4 * ctx.replica_id_in_sync_group + 4)

    value = strategy.experimental_distribute_values_from_function(value_fn)
    across = strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None)
    assert_tensor(across, np.arange(4 * n).reshape(n, 4).sum(0), tf.int32)
    whole = strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=0)
    assert_tensor(whole, sum(range(4 * n)), tf.int32)


def reduce_with_a_partial_batch(devices=None):
    """The last partial batch of the text: MEAN with an axis counts each example once."""
    strategy = tf.distribute.MirroredStrategy(devices)
    n = strategy.num_replicas_in_sync

    def value_fn(ctx):
        is_last = ctx.replica_id_in_sync_group == ctx.num_replicas_in_sync - 1
        start = 4.0 * ctx.replica_id_in_sync_group
        return tf.range(start, start + (2 if is_last else 4))

    value = strategy.experimental_distribute_values_from_function(value_fn)
    mean = strategy.reduce(tf.distribute.ReduceOp.MEAN, value, axis=0)
    assert_tensor(mean, np.arange(4 * n - 2, dtype=np.float32).mean(), tf.float32)


EXAMPLES = (
    value_context_directly_constructed,
    value_context_passed_in,
    constant_value_per_replica,
    values_of_an_array_by_replica_id,
    values_by_num_replicas_in_sync,
    values_placed_on_devices,
    run_with_a_constant_tensor,
    run_with_distributed_values,
    scope_creates_mirrored_variables,
    scope_installs_the_strategy,
    reduce_with_and_without_an_axis,
    reduce_with_a_partial_batch,
)
