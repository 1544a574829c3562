"""all_reduce and all_gather in replica context."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import replicax as rx


def replica_ids(strategy, dtype=jnp.float32):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.asarray(ctx.replica_id_in_sync_group, dtype)
    )


def components(strategy, result):
    return [np.asarray(value).tolist() for value in strategy.experimental_local_results(result)]


def all_reduce(op, value):
    return rx.get_replica_context().all_reduce(op, value)


def all_gather(value, axis=0):
    return rx.get_replica_context().all_gather(value, axis=axis)


SUMS = [rx.ReduceOp.SUM, "SUM", "sum", rx.VariableAggregation.SUM]
MEANS = [rx.ReduceOp.MEAN, "MEAN", "Mean", rx.VariableAggregation.MEAN]


def test_every_spelling_of_a_reduction_adds_or_averages_every_replica(strategy, execute):
    def replica_fn(x):
        return [all_reduce(op, x + 1) for op in (*SUMS, *MEANS)]

    results = execute(strategy, replica_fn, args=(replica_ids(strategy),))
    count = strategy.num_replicas_in_sync
    expected = [count * (count + 1) / 2] * len(SUMS) + [(count + 1) / 2] * len(MEANS)
    for result, value in zip(results, expected, strict=True):
        assert components(strategy, result) == [value] * count


OTHERS = ("MAX", None, 3, rx.VariableAggregation.ONLY_FIRST_REPLICA, rx.VariableAggregation.NONE)


def test_other_reductions_are_refused(strategy, execute):
    for op in OTHERS:
        with pytest.raises(ValueError, match=r"reduce_op is .*; expected ReduceOp\.SUM or Reduce"):
            execute(strategy, lambda op=op: all_reduce(op, 1.0))
    assert float(execute(strategy, lambda: all_reduce("MEAN", 1.0))) == 1.0


def test_a_nest_is_reduced_leaf_by_leaf(strategy, execute):
    def replica_fn(x):
        nest = {"a": (x, jnp.ones((2, 3)) * x), "b": [x.astype(jnp.int32), None], "c": 2.0}
        return all_reduce("SUM", nest)

    result = execute(strategy, replica_fn, args=(replica_ids(strategy),))
    count = strategy.num_replicas_in_sync
    total = count * (count - 1) / 2
    first = strategy.experimental_local_results(result)[0]
    assert float(first["a"][0]) == total
    np.testing.assert_array_equal(first["a"][1], np.full((2, 3), total))
    assert first["b"][0].dtype == jnp.int32 and int(first["b"][0]) == total
    assert first["b"][1] is None
    assert float(first["c"]) == 2.0 * count


def test_integers_sum_to_integers_and_average_to_floats(strategy, execute):
    def replica_fn(x):
        return all_reduce("SUM", x + 1), all_reduce("MEAN", x)

    total, mean = execute(strategy, replica_fn, args=(replica_ids(strategy, jnp.int32),))
    count = strategy.num_replicas_in_sync
    total, mean = (strategy.experimental_local_results(v)[0] for v in (total, mean))
    assert total.dtype == jnp.int32 and int(total) == count * (count + 1) // 2
    assert mean.dtype == jnp.float32 and float(mean) == (count - 1) / 2


def test_bools_are_counted_and_half_floats_keep_their_dtype(strategy, execute):
    def replica_fn(x):
        halves = x.astype(jnp.bfloat16), x.astype(jnp.float16)
        return all_reduce("SUM", (x >= 0, halves)), all_reduce("MEAN", (x >= 0, halves))

    results = execute(strategy, replica_fn, args=(replica_ids(strategy),))
    (total, sums), (mean, means) = strategy.experimental_local_results(results)[0]
    assert total.dtype == jnp.int32 and int(total) == strategy.num_replicas_in_sync
    assert mean.dtype == jnp.float32 and float(mean) == 1.0
    assert [value.dtype for value in (*sums, *means)] == [jnp.bfloat16, jnp.float16] * 2


CONSTANT = jnp.full((2,), 3.0)


def test_what_is_the_same_on_every_replica_counts_once_per_replica(strategy, execute):
    def replica_fn(number, array):
        return [
            all_reduce(op, value)
            for op in ("SUM", "MEAN")
            for value in (2, number, array, CONSTANT)
        ]

    results = execute(strategy, replica_fn, args=(1.5, jnp.ones(()) * 4))
    count = strategy.num_replicas_in_sync
    values = [strategy.experimental_local_results(r)[0] for r in results]
    expected = [2 * count, 1.5 * count, 4.0 * count, [3.0 * count] * 2, 2.0, 1.5, 4.0, [3.0] * 2]
    for value, wanted in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, wanted)


def test_an_all_reduce_result_counts_once_per_replica_again(strategy, execute):
    result = execute(strategy, lambda: all_reduce("SUM", all_reduce("SUM", 1.0)))
    count = strategy.num_replicas_in_sync
    assert components(strategy, result) == [float(count**2)] * count


def test_a_variable_may_be_all_reduced(strategy, execute):
    with strategy.scope():
        variable = rx.Variable([1.0, 2.0])
    result = execute(strategy, lambda: all_reduce("SUM", variable))
    count = strategy.num_replicas_in_sync
    assert components(strategy, result) == [[1.0 * count, 2.0 * count]] * count


def test_components_of_different_shape_are_refused(many, execute):
    batch = many.distribute_batch(np.ones(many.num_replicas_in_sync + 1, np.float32))
    with pytest.raises(ValueError, match=r"shape"):
        execute(many, lambda x: all_reduce("SUM", x), args=(batch,))
    assert float(execute(many, lambda: all_reduce("MEAN", 1.0))) == 1.0


def test_all_gather_concatenates_in_replica_order(strategy, execute):
    def replica_fn(x):
        pair = jnp.stack([x, x + 0.5])
        return all_gather(pair), all_gather(pair[None], axis=1), all_gather(pair[:, None], axis=-1)

    results = execute(strategy, replica_fn, args=(replica_ids(strategy),))
    count = strategy.num_replicas_in_sync
    flat = np.arange(2 * count) / 2
    for result, expected in zip(results, (flat, flat[None], flat.reshape(count, 2).T), strict=True):
        for component in strategy.experimental_local_results(result):
            np.testing.assert_array_equal(component, expected)


@pytest.mark.parametrize("size", [1, 5, 9])
def test_all_gather_joins_uneven_components(strategy, execute, size):
    data = np.arange(size * 2, dtype=np.float32).reshape(size, 2)
    result = execute(strategy, all_gather, args=(strategy.distribute_batch(data),))
    for component in strategy.experimental_local_results(result):
        np.testing.assert_array_equal(component, data)


def test_all_gather_takes_nests_ints_and_bools(strategy, execute):
    def replica_fn(x):
        return all_gather({"i": x[None].astype(jnp.int32), "b": [x[None] > 0]})

    result = execute(strategy, replica_fn, args=(replica_ids(strategy),))
    first = strategy.experimental_local_results(result)[0]
    count = strategy.num_replicas_in_sync
    assert first["i"].dtype == jnp.int32 and first["i"].tolist() == list(range(count))
    assert first["b"][0].dtype == jnp.bool_
    assert first["b"][0].tolist() == [i > 0 for i in range(count)]


BAD_GATHERS = {
    "scalar": (lambda: all_gather(1.0), "needs components with that dim"),
    "axis out of range": (lambda: all_gather(jnp.ones((1, 2)), axis=2), "axis 2 needs"),
    "axis None": (lambda: all_gather(jnp.ones(1), axis=None), "int axis; got None"),
}


def test_a_gather_that_makes_no_sense_is_refused(strategy, execute):
    for replica_fn, text in BAD_GATHERS.values():
        with pytest.raises(ValueError, match=text):
            execute(strategy, replica_fn)
    assert float(execute(strategy, lambda: all_reduce("MEAN", 1.0))) == 1.0


def test_a_gather_of_components_that_differ_elsewhere_is_refused(many, execute):
    batch = many.distribute_batch(np.ones(many.num_replicas_in_sync + 1, np.float32))
    with pytest.raises(ValueError, match="agree in every other dim"):
        execute(many, lambda x: all_gather(x[None], axis=0), args=(batch,))


def test_the_gradient_of_all_reduce_is_the_all_reduce_of_the_gradient(strategy, execute):
    weights = np.arange(1.0, strategy.num_replicas_in_sync + 1)

    def replica_fn(x):
        def gradient(op):
            return jax.grad(lambda y: (x + 1) * all_reduce(op, y * y))(3.0)

        return jnp.stack([gradient("SUM"), gradient("MEAN")])

    result = execute(strategy, replica_fn, args=(replica_ids(strategy),))
    expected = [6.0 * weights.sum(), 6.0 * weights.mean()]
    np.testing.assert_allclose(components(strategy, result), [expected] * len(weights), rtol=1e-6)


def test_the_gradient_goes_through_a_nest_and_through_two_reductions(strategy, execute):
    count = strategy.num_replicas_in_sync

    def loss(w, x):
        first, second = all_reduce("SUM", (w["a"] * x, w["b"]))
        return all_reduce("SUM", first * second)

    def replica_fn(x):
        return jax.grad(loss)({"a": jnp.asarray(2.0), "b": jnp.asarray(1.0)}, x)

    result = execute(strategy, replica_fn, args=(1.0,))
    grads = strategy.experimental_local_results(result)[0]
    # The inner gradient of every replica is summed again by the outer reduction.
    np.testing.assert_allclose(grads["a"], count**3, rtol=1e-6)
    np.testing.assert_allclose(grads["b"], 2.0 * count**3, rtol=1e-6)


def test_a_gradient_that_does_not_pass_an_all_reduce_stays_local(strategy, execute):
    result = execute(
        strategy, lambda x: jax.grad(lambda w: w * x)(1.0), args=(replica_ids(strategy),)
    )
    count = strategy.num_replicas_in_sync
    assert components(strategy, result) == [float(i) for i in range(count)]


def test_a_compiled_collective_works_inside_loops_and_nested_functions(strategy, compiled):
    nested = rx.function(lambda y: all_reduce("SUM", y))

    def replica_fn(x):
        start = x + 1
        scanned, _ = lax.scan(lambda c, _: (all_reduce("SUM", c) / 2, None), start, length=2)
        _, looped = lax.while_loop(
            lambda c: c[0] < 2, lambda c: (c[0] + 1, all_gather(c[1][None]).sum() / 2), (0, start)
        )
        return jnp.stack([scanned, looped, nested(start)])

    count = strategy.num_replicas_in_sync
    total = count * (count + 1) / 2
    result = compiled(strategy, replica_fn, args=(replica_ids(strategy),))
    expected = [total / 2 * count / 2] * 2 + [total]
    np.testing.assert_allclose(components(strategy, result), [expected] * count, rtol=1e-6)


def test_the_gradient_goes_through_a_collective_in_a_scan(strategy, compiled):
    count = strategy.num_replicas_in_sync

    def loss(x):
        return lax.scan(lambda c, _: (all_reduce("MEAN", c * 2.0), None), x, length=2)[0]

    result = compiled(strategy, jax.grad(loss), args=(jnp.ones(()),))
    assert components(strategy, result) == [4.0] * count


def test_a_users_psum_over_the_replica_axis_works(strategy, compiled):
    def replica_fn(x):
        return lax.psum(x + 1, rx.REPLICA_AXIS), lax.axis_index(rx.REPLICA_AXIS) + 0 * x

    total, index = compiled(strategy, replica_fn, args=(replica_ids(strategy),))
    count = strategy.num_replicas_in_sync
    assert components(strategy, total) == [count * (count + 1) / 2] * count
    assert components(strategy, index) == list(range(count))


def test_the_default_replica_context_reduces_nothing():
    context = rx.get_replica_context()
    assert float(context.all_reduce("SUM", 3.0)) == 3.0
    assert context.all_reduce("MEAN", 3).dtype == jnp.float32
    np.testing.assert_array_equal(context.all_gather(jnp.ones(2), axis=0), [1.0, 1.0])


@pytest.mark.parametrize("argument", [1.0, 3.0])
def test_an_argument_decides_of_a_collective_although_the_components_are_uneven(
    strategy, compiled, argument
):
    batch = strategy.distribute_batch(np.arange(2 * strategy.num_replicas_in_sync + 1.0))

    def replica_fn(x, number):
        return lax.cond(number > 2, lambda n: all_reduce("SUM", n), lambda n: n, number) + 0 * len(
            x
        )

    results = components(strategy, compiled(strategy, replica_fn, args=(batch, argument)))
    times = strategy.num_replicas_in_sync if argument > 2 else 1
    assert results == [argument * times] * strategy.num_replicas_in_sync
