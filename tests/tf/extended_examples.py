"""The examples of the document on StrategyExtended; see `strategy_examples`."""

import numpy as np

import replicax as rx
import replicax.tf as tf
from tests.tf.comparing import assert_result, assert_tensor


def merge_call_adds_over_the_replicas(devices=None):
    distribution = tf.distribute.MirroredStrategy(devices)

    # Called once in "cross-replica" context.
    def merge_fn(distribution, five_plus_replica_id):
        assert tf.distribute.in_cross_replica_context()
        # sum the values across replicas
        return sum(distribution.experimental_local_results(five_plus_replica_id))

    # Called once per replica in `distribution`, in a "replica" context.
    def fn(five):
        replica_ctx = tf.get_replica_context()
        v = five + replica_ctx.replica_id_in_sync_group
        # Computes the sum of the `v` values across all replicas.
        s = replica_ctx.merge_call(merge_fn, args=(v,))
        return s + v

    n = distribution.num_replicas_in_sync
    total = sum(5 + i for i in range(n))
    with distribution.scope():
        merged_results = distribution.run(fn, args=[5])
        printed = distribution.experimental_local_results(merged_results)
        assert printed == tuple(total + 5 + i for i in range(n))
        called = distribution.extended.call_for_each_replica(fn, args=[5])
        assert distribution.experimental_local_results(called) == printed
        compiled = distribution.run(tf.function(fn), args=[tf.constant(5)])
        assert_result(distribution, compiled, printed, tf.int32)


def results_are_merged_by_what_they_are(devices=None):
    """The text on unwrapping and merging: ``(x, a, v0)`` from replica 0, and so on."""
    strategy = tf.distribute.MirroredStrategy(devices)
    x = tf.constant([1.0, 2.0])
    with strategy.scope():
        v = tf.Variable(3.0)
    w = strategy.experimental_distribute_values_from_function(
        lambda ctx: tf.constant(10.0 * ctx.replica_id_in_sync_group)
    )

    def fn(component):
        assert component.shape == ()
        return x, component + 1.0, v

    n = strategy.num_replicas_in_sync
    for one in (fn, tf.function(fn)):
        same, different, variable = strategy.run(one, args=[w])
        assert same is x
        assert_result(strategy, different, [10.0 * i + 1.0 for i in range(n)], tf.float32)
        assert variable is v


def update_runs_once_per_copy(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)
    with strategy.scope():
        var = tf.Variable(1.0)
    calls = []

    def fn(v, amount):
        calls.append(v)
        assert tf.distribute.in_cross_replica_context()
        return v.assign_add(amount)

    n = strategy.num_replicas_in_sync
    assert strategy.extended.update(var, fn, args=(2.0,)) is var
    assert len(calls) == n
    assert var.numpy() == 3.0
    unwrapped = strategy.extended.update(var, fn, kwargs={"amount": 1.0}, group=False)
    assert isinstance(unwrapped, list)
    assert [float(v) for v in unwrapped] == [4.0] * n
    # Otherwise this returns fn(var, ...): a variable that is not mirrored.
    plain = tf.Variable(1.0)
    assert strategy.extended.update(plain, lambda v, d: v.assign(d), args=(5.0,)) is plain
    assert plain.numpy() == 5.0


def mirrored_arguments_of_update_are_unwrapped(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)
    with strategy.scope():
        var = tf.Variable(1.0)
    value = strategy.experimental_distribute_values_from_function(lambda ctx: tf.constant(2.0))
    mirrored = strategy.extended.reduce_to(tf.distribute.ReduceOp.SUM, value, destinations=var)
    seen = []

    def fn(v, amount):
        seen.append(type(amount))
        v.assign(amount)

    assert strategy.extended.update(var, fn, args=(mirrored,)) is None
    assert not any(issubclass(kind, tf.distribute.DistributedValues) for kind in seen)
    assert var.numpy() == 2.0 * strategy.num_replicas_in_sync


def variables_created_in_scope_are_owned(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)
    with strategy.scope():
        v = tf.Variable(1.0)
    assert strategy.extended.variable_created_in_scope(v) is True

    v = tf.Variable(1.0)
    assert strategy.extended.variable_created_in_scope(v) is False


def _is_among(value, values):
    return any(value is one for one in values)


def value_container_of_local_results(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)
    with strategy.scope():
        v = tf.Variable([1.0, 2.0])
    container = strategy.extended.value_container
    for value in strategy.experimental_local_results(v):
        assert container(value) is v
        assert _is_among(value, strategy.experimental_local_results(container(value)))
    result = strategy.run(lambda: tf.constant(1.0))
    for value in strategy.experimental_local_results(result):
        assert container(value) is value
        assert _is_among(value, strategy.experimental_local_results(container(value)))


def _expected_after_recipe(strategy):
    total = sum(i + 1.0 for i in range(strategy.num_replicas_in_sync))
    w = np.array([1.0, 2.0], np.float32) - 0.5 * np.array([1.0, 2.0], np.float32) * total
    return w, np.float32(-0.5 * strategy.num_replicas_in_sync)


def _scaled_inputs(strategy):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: tf.constant([1.0, 2.0]) * (ctx.replica_id_in_sync_group + 1)
    )


def four_steps_to_update_one_variable_at_a_time(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)
    for wrap in (lambda fn: fn, tf.function):
        with strategy.scope():
            w, b = tf.Variable([1.0, 2.0]), tf.Variable(0.0)

        def apply(strategy, pairs):
            for update, variable in pairs:
                total = strategy.extended.reduce_to(  # step 3
                    tf.VariableAggregation.SUM, update, variable
                )
                strategy.extended.update(  # step 4
                    variable, lambda v, t: v.assign_sub(0.5 * t), args=(total,)
                )

        def fn(x, w=w, b=b, apply=apply):
            _, gradients = rx.value_and_grad(lambda: tf.reduce_sum(w * x) + b, [w, b])  # step 1
            pairs = list(zip(gradients, [w, b], strict=True))
            tf.distribute.get_replica_context().merge_call(apply, args=(pairs,))  # step 2

        strategy.run(wrap(fn), args=(_scaled_inputs(strategy),))
        expected_w, expected_b = _expected_after_recipe(strategy)
        np.testing.assert_array_equal(w.numpy(), expected_w)
        np.testing.assert_array_equal(b.numpy(), expected_b)


def four_steps_to_update_a_list_of_variables(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)
    for wrap in (lambda fn: fn, tf.function):
        with strategy.scope():
            variables = [tf.Variable([1.0, 2.0]), tf.Variable(0.0)]

        def apply(strategy, gradients, variables):
            totals = strategy.extended.batch_reduce_to(
                tf.distribute.ReduceOp.SUM, list(zip(gradients, variables, strict=True))
            )
            for total, variable in zip(totals, variables, strict=True):
                strategy.extended.update(
                    variable, lambda v, t: v.assign_sub(0.5 * t), kwargs={"t": total}
                )

        def fn(x, variables=variables, apply=apply):
            w, b = variables
            _, gradients = rx.value_and_grad(lambda: tf.reduce_sum(w * x) + b, variables)
            tf.get_replica_context().merge_call(apply, args=(gradients, variables))

        strategy.run(wrap(fn), args=(_scaled_inputs(strategy),))
        expected_w, expected_b = _expected_after_recipe(strategy)
        np.testing.assert_array_equal(variables[0].numpy(), expected_w)
        np.testing.assert_array_equal(variables[1].numpy(), expected_b)


def an_assign_with_an_aggregation_does_steps_2_to_4(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)
    for wrap in (lambda fn: fn, tf.function):
        with strategy.scope():
            v = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)

        def fn(v=v):
            v.assign_add(tf.get_replica_context().replica_id_in_sync_group + 1.0)

        strategy.run(wrap(fn))
        assert v.numpy() == sum(i + 1.0 for i in range(strategy.num_replicas_in_sync))


def sync_on_read_variables_read_and_write_their_own_copy(devices=None):
    """The text's ``v = 0.9*v + 0.1*update``."""
    strategy = tf.distribute.MirroredStrategy(devices)
    n = strategy.num_replicas_in_sync
    for wrap in (lambda fn: fn, tf.function):
        with strategy.scope():
            v = tf.Variable(
                8.0,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.MEAN,
            )

        def fn(update, v=v):
            v.assign(0.5 * v + 0.5 * update)

        updates = strategy.experimental_distribute_values_from_function(
            lambda ctx: tf.constant(2.0 * ctx.replica_id_in_sync_group)
        )
        strategy.run(wrap(fn), args=(updates,))
        copies = [float(c) for c in strategy.experimental_local_results(v)]
        assert copies == [4.0 + i for i in range(n)]
        assert v.numpy() == 4.0 + (n - 1) / 2


def a_distribute_aware_layer_uses_all_reduce(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)

    def layer(x):
        if tf.distribute.in_cross_replica_context():
            return None
        ctx = tf.distribute.get_replica_context()
        return ctx.all_reduce(tf.distribute.ReduceOp.MEAN, x)

    n = strategy.num_replicas_in_sync
    x = strategy.experimental_distribute_values_from_function(
        lambda ctx: tf.constant([2.0 * ctx.replica_id_in_sync_group])
    )
    for one in (layer, tf.function(layer)):
        result = strategy.run(one, args=(x,))
        assert_result(strategy, result, [[n - 1.0]] * n, tf.float32)
    with strategy.scope():
        assert layer(x) is None


def reduce_to_one_device(devices=None):
    strategy = tf.distribute.MirroredStrategy(devices)
    value = strategy.experimental_distribute_values_from_function(
        lambda ctx: tf.constant([1.0, ctx.replica_id_in_sync_group])
    )
    last = strategy.extended.worker_devices[-1]
    total = strategy.extended.reduce_to(tf.distribute.ReduceOp.SUM, value, last)
    n = strategy.num_replicas_in_sync
    assert_tensor(total, [n, n * (n - 1) / 2], tf.float32)
    with tf.device(last):
        assert total.devices() == tf.constant(0.0).devices()


EXAMPLES = (
    merge_call_adds_over_the_replicas,
    results_are_merged_by_what_they_are,
    update_runs_once_per_copy,
    mirrored_arguments_of_update_are_unwrapped,
    variables_created_in_scope_are_owned,
    value_container_of_local_results,
    four_steps_to_update_one_variable_at_a_time,
    four_steps_to_update_a_list_of_variables,
    an_assign_with_an_aggregation_does_steps_2_to_4,
    sync_on_read_variables_read_and_write_their_own_copy,
    a_distribute_aware_layer_uses_all_reduce,
    reduce_to_one_device,
)
