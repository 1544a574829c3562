"""Sums and means of half floats: added in 32 bits, rounded once, given back in their own dtype.

The values are such that every sum in 16 bits would be infinite, or would stop growing, and that
the result in 16 bits is known exactly.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

SUM, MEAN = rx.ReduceOp.SUM, rx.ReduceOp.MEAN
ON_READ = rx.VariableSynchronization.ON_READ


@pytest.fixture(params=["float16", "bfloat16"])
def half(request):
    return jnp.dtype(request.param)


def trap(half):
    """A value whose sums 16 bits cannot hold: the largest float16, an odd bfloat16."""
    return jnp.finfo(half).max if half == jnp.float16 else jnp.asarray(1 + 2**-7, half)


def constant(strategy, value):
    return strategy.experimental_distribute_values_from_function(lambda _: value)


def first(strategy, result):
    return strategy.experimental_local_results(result)[0]


def is_exactly(result, expected, half):
    assert result.dtype == half
    np.testing.assert_array_equal(np.asarray(result, np.float32), np.asarray(expected, np.float32))


@pytest.mark.parametrize("axis", [0, (0,), -1])
def test_a_mean_over_many_examples_is_not_added_in_half_floats(strategy, half, axis):
    many = strategy.distribute_batch(np.full(1_000, 100.0, half))
    is_exactly(strategy.reduce(MEAN, many, axis=axis), 100.0, half)
    is_exactly(strategy.reduce(MEAN, np.full(1_000, 100.0, half), axis=axis), 100.0, half)
    small = strategy.distribute_batch(np.full(140_001, 2.0**-7, half))  # uneven on all but 3
    is_exactly(strategy.reduce(MEAN, small, axis=axis), 2.0**-7, half)
    large = strategy.distribute_batch(np.full(8 * 3 * 5, trap(half)))
    is_exactly(strategy.reduce(MEAN, large, axis=axis), trap(half), half)


def test_a_compiled_reduction_of_examples_is_not_added_in_half_floats(strategy, half):
    def whole(batch):
        return strategy.reduce(MEAN, strategy.run(lambda x: x + 0, args=(batch,)), axis=0)

    for size in (8 * 3 * 100, 8 * 3 * 100 + 1):
        batch = strategy.distribute_batch(np.full(size, 100.0, half))
        is_exactly(rx.function(whole)(batch), 100.0, half)


def test_an_all_reduce_of_half_floats_rounds_once(strategy, execute, half):
    def replica_fn(value):
        # Alone, beside others in one pack, and too large for a pack.
        values = [value, jnp.full((2, 3), value), jnp.full(20_000, value)]
        return rx.get_replica_context().all_reduce(MEAN, values)

    for value in (trap(half), jnp.finfo(half).tiny):
        args = (constant(strategy, jnp.asarray(value, half)),)
        for result in first(strategy, execute(strategy, replica_fn, args=args)):
            is_exactly(result, np.full(result.shape, value), half)


def test_a_sum_that_fits_is_right_although_it_does_not_in_the_middle(strategy, execute, half):
    count = strategy.num_replicas_in_sync

    def replica_fn(value):
        return rx.get_replica_context().all_reduce(SUM, value)

    def value_fn(ctx):
        sign = -1 if ctx.replica_id_in_sync_group >= (count + 1) // 2 else 1
        return jnp.asarray(sign * trap(half), half)

    values = strategy.experimental_distribute_values_from_function(value_fn)
    expected = float(trap(half)) * (count % 2)
    is_exactly(first(strategy, execute(strategy, replica_fn, args=(values,))), expected, half)
    is_exactly(strategy.reduce(SUM, values, axis=None), expected, half)
    is_exactly(strategy.extended.reduce_to(SUM, values, "CPU:0"), expected, half)


def test_one_value_for_all_replicas_is_counted_exactly(strategy, half):
    value = np.full(600, trap(half) * 2.0**-11, half)
    value[1::2] *= -1
    value[0] = 1
    expected = np.asarray(value, np.float32).sum() * strategy.num_replicas_in_sync
    result = strategy.reduce(SUM, value, axis=0)
    is_exactly(result, np.asarray(expected).astype(half), half)


def test_reduce_to_and_batch_reduce_to_take_the_mean_in_32_bits(strategy, half):
    value = constant(strategy, jnp.full(3, trap(half)))
    result = strategy.extended.reduce_to(MEAN, value, "CPU:0")
    is_exactly(result, np.full(3, trap(half)), half)
    for result in strategy.extended.batch_reduce_to(MEAN, [(value, "CPU:0"), (value, value)]):
        is_exactly(result, np.full(3, trap(half)), half)


def test_merged_gradients_take_the_mean_in_32_bits(strategy, execute, half):
    with strategy.scope():
        v = rx.Variable(jnp.zeros(3, half), aggregation=rx.VariableAggregation.MEAN)

    def merge_fn(strategy, value):
        return strategy.extended.reduce_to(MEAN, value, v)

    def replica_fn(value):
        return rx.get_replica_context().merge_call(merge_fn, args=(value + 0,))

    args = (constant(strategy, jnp.full(3, trap(half))),)
    result = first(strategy, execute(strategy, replica_fn, args=args))
    is_exactly(result, np.full(3, trap(half)), half)


def test_a_mirrored_variable_is_assigned_the_mean_in_32_bits(strategy, execute, half):
    with strategy.scope():
        v = rx.Variable(jnp.zeros(3, half), aggregation=rx.VariableAggregation.MEAN)
    args = (constant(strategy, jnp.full(3, trap(half))),)
    execute(strategy, lambda value: v.assign(value + 0), args=args)
    is_exactly(v.value, np.full(3, trap(half)), half)


def test_a_sync_on_read_variable_is_read_as_the_mean_in_32_bits(strategy, execute, half):
    mean = rx.VariableAggregation.MEAN
    with strategy.scope():
        v = rx.Variable(jnp.zeros(3, half), synchronization=ON_READ, aggregation=mean)
    args = (constant(strategy, jnp.full(3, trap(half))),)
    execute(strategy, lambda value: v.assign(value), args=args)
    is_exactly(v.value, np.full(3, trap(half)), half)
    is_exactly(rx.function(lambda: v.value)(), np.full(3, trap(half)), half)

    def replica_fn():
        return rx.get_replica_context().merge_call(lambda _: v.value)

    is_exactly(first(strategy, execute(strategy, replica_fn)), np.full(3, trap(half)), half)


def test_the_gradient_of_an_all_reduce_is_added_in_32_bits(strategy, execute, half):
    def replica_fn(x, weight):
        def loss(x):
            return weight * rx.get_replica_context().all_reduce(MEAN, x)

        return jax.grad(loss)(x)

    args = (constant(strategy, jnp.asarray(1, half)), constant(strategy, trap(half)))
    is_exactly(first(strategy, execute(strategy, replica_fn, args=args)), trap(half), half)


def test_the_gradient_of_an_all_gather_is_added_in_32_bits(strategy, execute, half):
    count = strategy.num_replicas_in_sync

    def replica_fn(x, weight):
        def loss(x):
            return (weight * rx.get_replica_context().all_gather(x, axis=0)).sum()

        return jax.grad(loss)(x)

    def weight(ctx):
        sign = -1 if ctx.replica_id_in_sync_group >= (count + 1) // 2 else 1
        return jnp.asarray(sign * trap(half), half)

    weights = strategy.experimental_distribute_values_from_function(weight)
    args = (constant(strategy, jnp.ones(2, half)), weights)
    expected = np.full(2, float(trap(half)) * (count % 2))
    is_exactly(first(strategy, execute(strategy, replica_fn, args=args)), expected, half)


def test_a_metric_of_half_floats_counts_beyond_2048(strategy, execute, half):
    with strategy.scope():
        mean, error = (kind(dtype=half) for kind in (rx.metrics.Mean, rx.metrics.MeanSquaredError))

    def update(x):
        mean.update_state(x)
        error.update_state(x, x - 64)

    for _ in range(3):
        execute(strategy, update, args=(strategy.distribute_batch(np.full(30_000, 96.0, half)),))
    is_exactly(mean.result(), 96.0, half)
    is_exactly(error.result(), 4096.0, half)


def test_a_regularization_loss_of_half_floats_is_divided_before_it_is_rounded(strategy, half):
    count = strategy.num_replicas_in_sync
    terms = np.full(count, trap(half))
    result = strategy.run(lambda: rx.scale_regularization_loss(terms))
    is_exactly(first(strategy, result), trap(half), half)
