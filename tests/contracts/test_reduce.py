"""strategy.reduce: which operations, which axes, which values, counted how."""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from tests.contracts.strategies import mirrored

OPS = {
    "enum": (rx.ReduceOp.SUM, rx.ReduceOp.MEAN),
    "upper": ("SUM", "MEAN"),
    "lower": ("sum", "mean"),
    "mixed": ("Sum", "mEaN"),
    "aggregation": (rx.VariableAggregation.SUM, rx.VariableAggregation.MEAN),
}
UNKNOWN = [
    None,
    "MAX",
    "",
    1,
    rx.VariableAggregation.NONE,
    rx.VariableAggregation.ONLY_FIRST_REPLICA,
]


def from_ids(strategy, fn):
    """One value per replica, from its id."""
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: fn(ctx.replica_id_in_sync_group)
    )


@pytest.fixture(params=["outside", "in a function", "in a function with its run"])
def reduce(request):
    """Every place of cross-replica code where a reduction may stand."""

    def call(strategy, op, value, axis=None):
        if request.param == "outside":
            return strategy.reduce(op, value, axis=axis)
        if request.param == "in a function":
            return rx.function(lambda value: strategy.reduce(op, value, axis=axis))(value)

        def whole(value):
            return strategy.reduce(op, strategy.run(lambda x: x, (value,)), axis=axis)

        return rx.function(whole)(value)

    return call


@pytest.mark.parametrize("name", OPS)
def test_the_operation_by_enum_string_and_aggregation(strategy, name):
    n = strategy.num_replicas_in_sync
    value = from_ids(strategy, lambda i: np.float32(i + 1))
    total, mean = OPS[name]
    assert float(strategy.reduce(total, value, axis=None)) == n * (n + 1) / 2
    assert float(strategy.reduce(mean, value, axis=None)) == (n + 1) / 2
    assert float(strategy.extended.reduce_to(total, value, "CPU:0")) == n * (n + 1) / 2
    (packed,) = strategy.extended.batch_reduce_to(mean, [(value, "CPU:0")])
    assert float(packed) == (n + 1) / 2
    reduced = strategy.run(lambda x: rx.get_replica_context().all_reduce(mean, x), (value,))
    assert float(reduced) == (n + 1) / 2


@pytest.mark.parametrize("op", UNKNOWN, ids=repr)
def test_other_operations_are_refused(strategy, op):
    calls = [
        lambda: strategy.reduce(op, 1.0, axis=None),
        lambda: strategy.extended.reduce_to(op, 1.0, "CPU:0"),
        lambda: strategy.extended.batch_reduce_to(op, [(1.0, "CPU:0")]),
        lambda: strategy.run(lambda: rx.get_replica_context().all_reduce(op, 1.0)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"reduce_op is .*expected ReduceOp\.SUM or"):
            call()


AXES = [None, 0, 1, -1, -2, (0, 1), (-1, 0), [0]]


@pytest.mark.parametrize("axis", AXES, ids=repr)
def test_axes(many, axis):
    n = many.num_replicas_in_sync
    parts = [np.arange(6, dtype=np.float32).reshape(2, 3) + 10 * i for i in range(n)]
    value = from_ids(many, lambda i: parts[i])
    over = (0,) if axis is None else (0, *(a % 2 + 1 for a in np.atleast_1d(axis)))
    for call in (many.reduce, rx.function(many.reduce)):
        np.testing.assert_allclose(call("SUM", value, axis=axis), np.sum(parts, over), rtol=1e-6)
        np.testing.assert_allclose(call("MEAN", value, axis=axis), np.mean(parts, over), rtol=1e-6)


def test_axes_on_one_replica_and_the_default(strategy, reduce):
    parts = [np.arange(4.0, dtype=np.float32) + i for i in range(strategy.num_replicas_in_sync)]
    value = from_ids(strategy, lambda i: parts[i])
    np.testing.assert_allclose(reduce(strategy, "SUM", value), np.sum(parts, 0))
    np.testing.assert_allclose(reduce(strategy, "MEAN", value, 0), np.mean(parts), rtol=1e-6)


def test_nests(strategy, reduce):
    n = strategy.num_replicas_in_sync
    value = {
        "a": from_ids(strategy, lambda i: np.float32([i, 1])),
        "b": [from_ids(strategy, lambda i: np.float32([2 * i])), (np.ones(3, np.float32), None)],
    }
    total = reduce(strategy, "SUM", value)
    np.testing.assert_allclose(total["a"], [n * (n - 1) / 2, n])
    np.testing.assert_allclose(total["b"][0], [n * (n - 1)])
    np.testing.assert_allclose(total["b"][1][0], np.full(3, n))
    assert total["b"][1][1] is None
    mean = reduce(strategy, "MEAN", value, 0)
    np.testing.assert_allclose(mean["a"], ((n - 1) / 2 + 1) / 2)
    np.testing.assert_allclose(mean["b"][1][0], 1)


def test_mean_with_an_axis_divides_by_the_examples_present(strategy, reduce):
    for size in (1, 5):  # leaves short and empty components for most strategies
        batch = np.arange(2.0 * size, dtype=np.float32).reshape(size, 2) + 1
        value = strategy.distribute_batch(batch)
        np.testing.assert_allclose(reduce(strategy, "MEAN", value, 0), batch.mean(0), rtol=1e-6)
        np.testing.assert_allclose(reduce(strategy, "SUM", value, 0), batch.sum(0), rtol=1e-6)
        np.testing.assert_allclose(reduce(strategy, "MEAN", value, (0, 1)), batch.mean(), rtol=1e-6)


def test_nothing_at_all_makes_no_nan(strategy, reduce):
    value = strategy.distribute_batch(np.zeros((0, 2), np.float32))
    np.testing.assert_array_equal(reduce(strategy, "MEAN", value, 0), [0, 0])
    np.testing.assert_array_equal(reduce(strategy, "SUM", value, 0), [0, 0])


def test_an_empty_component_that_a_replica_made_counts_nothing(many):
    """What the function computed from an empty batch is as empty as the batch."""
    batch = many.distribute_batch(np.asarray([2.0], np.float32))
    for fn in (lambda x: x * 3, rx.function(lambda x: x * 3)):
        assert float(many.reduce("MEAN", many.run(fn, (batch,)), axis=0)) == 6


def test_different_shapes_without_an_axis_show_the_shapes(many):
    n = many.num_replicas_in_sync
    value = many.distribute_batch(np.ones(2 * n - 1, np.float32))
    match = r"different shapes \[\(2,\).*\(1,\)\].*axis=0"
    for call in (many.reduce, rx.function(many.reduce)):
        with pytest.raises(ValueError, match=match):
            call("SUM", value, axis=None)
    assert float(many.reduce("SUM", value, axis=0)) == 2 * n - 1


def test_shapes_that_still_differ_after_reducing_are_refused(two):
    value = from_ids(two, lambda i: np.ones((2, i + 1), np.float32))
    with pytest.raises(ValueError, match=r"\(2, 1\), \(2, 2\)\] still differ after reducing"):
        two.reduce("SUM", value, axis=0)


SAME = {
    "a number": lambda strategy, captured: lambda: 3.0,
    "an int": lambda strategy, captured: lambda: 3,
    "a captured array": lambda strategy, captured: lambda: captured,
    "a mirrored value": lambda strategy, captured: (
        lambda: rx.get_replica_context().all_reduce("MEAN", 3.0)
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_a_value_that_is_the_same_on_all_replicas_counts_once_per_replica(strategy, execute, name):
    n = strategy.num_replicas_in_sync
    result = execute(strategy, SAME[name](strategy, jnp.float32(3)))
    assert float(strategy.reduce("SUM", result, axis=None)) == 3 * n
    mean = strategy.reduce("MEAN", result, axis=None)
    assert float(mean) == 3
    assert jnp.issubdtype(mean.dtype, jnp.floating)


def test_the_same_with_an_axis(strategy, execute):
    n = strategy.num_replicas_in_sync
    captured = jnp.asarray([[1.0, 2.0], [3.0, 4.0]])
    result = execute(strategy, lambda: captured)
    np.testing.assert_allclose(strategy.reduce("SUM", result, axis=0), n * np.asarray([4.0, 6.0]))
    np.testing.assert_allclose(strategy.reduce("MEAN", result, axis=0), [2, 3])
    np.testing.assert_allclose(strategy.reduce("MEAN", result, axis=(0, 1)), 2.5)


def test_all_reduce_counts_the_same_value_once_per_replica(strategy, execute):
    n = strategy.num_replicas_in_sync
    captured = jnp.float32(3)

    def step():
        context = rx.get_replica_context()
        once = context.all_reduce("SUM", captured)
        return [
            context.all_reduce("SUM", 3.0),
            once,
            context.all_reduce("SUM", once),
            context.all_reduce("MEAN", captured),
        ]

    result = execute(strategy, step)
    assert [float(x) for x in result] == [3 * n, 3 * n, 3 * n * n, 3]


def test_a_mirrored_variable_counts_once_per_replica(strategy, execute):
    n = strategy.num_replicas_in_sync
    with strategy.scope():
        v = rx.Variable([1.0, 2.0])
    result = execute(strategy, lambda: v)
    np.testing.assert_allclose(strategy.reduce("SUM", result, axis=None), [n, 2 * n])
    np.testing.assert_allclose(strategy.reduce("MEAN", v, axis=0), 1.5)
    total = execute(strategy, lambda: rx.get_replica_context().all_reduce("SUM", v))
    np.testing.assert_allclose(total, [n, 2 * n])


def test_the_mean_of_integers_is_a_float(strategy, reduce):
    n = strategy.num_replicas_in_sync
    value = from_ids(strategy, lambda i: np.int32([i, 2]))
    mean = reduce(strategy, "MEAN", value)
    assert mean.dtype == jnp.float32
    np.testing.assert_allclose(mean, [(n - 1) / 2, 2])
    flat = reduce(strategy, "MEAN", value, 0)
    assert flat.dtype == jnp.float32
    np.testing.assert_allclose(flat, ((n - 1) / 2 + 2) / 2)


def test_the_mean_of_integers_in_all_reduce_is_a_float(strategy, execute):
    def step(x):
        return rx.get_replica_context().all_reduce("MEAN", x)

    mean = execute(strategy, step, (from_ids(strategy, lambda i: np.int32(i)),))
    assert mean.dtype == jnp.float32
    np.testing.assert_allclose(mean, (strategy.num_replicas_in_sync - 1) / 2)


def test_a_mean_of_large_integers_does_not_wrap_around(many, execute):
    large = np.int32([2**30, 2**30])
    value = from_ids(many, lambda i: large)
    np.testing.assert_allclose(many.reduce("MEAN", value, axis=None), large)
    np.testing.assert_allclose(many.reduce("MEAN", value, axis=0), 2**30)
    uneven = many.distribute_batch(np.full(2 * many.num_replicas_in_sync - 1, 2**30, np.int32))
    np.testing.assert_allclose(many.reduce("MEAN", uneven, axis=0), 2**30)

    def step(x):
        return rx.get_replica_context().all_reduce("MEAN", x)

    np.testing.assert_allclose(execute(many, step, (value,)), large)


def test_booleans_are_counted(strategy):
    value = from_ids(strategy, lambda i: np.asarray([True, i == 0]))
    n = strategy.num_replicas_in_sync
    np.testing.assert_array_equal(strategy.reduce("SUM", value, axis=None), [n, 1])
    np.testing.assert_allclose(strategy.reduce("MEAN", value, axis=None), [1, 1 / n])


@pytest.mark.parametrize("axis", [2, -3, "0", 0.0, True, (0, 5)], ids=repr)
def test_a_wrong_axis_is_refused(strategy, axis):
    value = from_ids(strategy, lambda i: np.ones((2, 3), np.float32))
    with pytest.raises(ValueError, match="axis"):
        strategy.reduce("SUM", value, axis=axis)


def test_the_result_is_an_ordinary_array_on_one_device(many):
    value = from_ids(many, lambda i: np.ones(2, np.float32))
    result = many.reduce("SUM", value, axis=None)
    assert len(result.devices()) == 1
    other = mirrored(2)
    expected = result[0] + other.num_replicas_in_sync
    np.testing.assert_allclose(result + other.reduce("SUM", jnp.ones(2)), expected)


def test_a_reduction_inside_merge_fn(strategy, execute):
    n = strategy.num_replicas_in_sync

    def merge_fn(strategy, x, same):
        return (
            strategy.reduce("SUM", x, axis=None),
            strategy.reduce("MEAN", {"x": x}, axis=0)["x"],
            strategy.reduce("SUM", same, axis=None),
            strategy.extended.reduce_to("MEAN", x, "CPU:0"),
        )

    def step(x):
        return rx.get_replica_context().merge_call(merge_fn, args=(x, 2.0))

    parts = [np.float32([i, i + 1]) for i in range(n)]
    result = execute(strategy, step, (from_ids(strategy, lambda i: parts[i]),))
    for total, mean, same, to in strategy.experimental_local_results(result):
        np.testing.assert_allclose(total, np.sum(parts, 0))
        np.testing.assert_allclose(mean, np.mean(parts), rtol=1e-6)
        np.testing.assert_allclose(same, 2 * n)
        np.testing.assert_allclose(to, np.mean(parts, 0), rtol=1e-6)


def test_uneven_components_inside_merge_fn(many, execute):
    n = many.num_replicas_in_sync
    batch = np.arange(1.0, 2 * n, dtype=np.float32)

    def step(x, axis):
        merge_fn = lambda strategy, x: strategy.reduce("MEAN", x, axis=axis)  # noqa: E731
        return rx.get_replica_context().merge_call(merge_fn, args=(x,))

    result = execute(many, lambda x: step(x, 0), (many.distribute_batch(batch),))
    for part in many.experimental_local_results(result):
        np.testing.assert_allclose(part, batch.mean(), rtol=1e-6)
    with pytest.raises(ValueError, match=r"different shapes \[\(2,\).*\(1,\)\].*axis=0"):
        execute(many, lambda x: step(x, None), (many.distribute_batch(batch),))
