"""gather and all_gather: concatenate the components of all replicas, also uneven ones."""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx


def from_ids(strategy, fn):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: fn(ctx.replica_id_in_sync_group)
    )


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_even_components(strategy, axis):
    parts = [
        np.arange(6, dtype=np.float32).reshape(2, 3) + i
        for i in range(strategy.num_replicas_in_sync)
    ]
    value = from_ids(strategy, lambda i: parts[i])
    expected = np.concatenate(parts, axis)
    np.testing.assert_array_equal(strategy.gather(value, axis=axis), expected)
    np.testing.assert_array_equal(
        rx.function(lambda v: strategy.gather(v, axis=axis))(value), expected
    )


@pytest.mark.parametrize("size", [0, 1, 5, 17])
def test_uneven_and_empty_components(strategy, size):
    batch = np.arange(2 * size, dtype=np.int32).reshape(size, 2)
    value = strategy.distribute_batch(batch)
    gathered = strategy.gather(value, axis=0)
    np.testing.assert_array_equal(gathered, batch)
    assert gathered.dtype == jnp.int32
    inside = rx.function(lambda v: strategy.gather(strategy.run(lambda x: x + 1, (v,)), axis=0))
    np.testing.assert_array_equal(inside(value), batch + 1)


def test_all_gather_gives_every_replica_everything(strategy, execute):
    n = strategy.num_replicas_in_sync
    value = from_ids(strategy, lambda i: np.full((2, 1), i, np.float32))

    def step(x):
        context = rx.get_replica_context()
        return context.all_gather(x, axis=0), context.all_gather({"x": x}, axis=-1)["x"]

    result = execute(strategy, step, (value,))
    for rows, columns in strategy.experimental_local_results(result):
        np.testing.assert_array_equal(rows, np.repeat(np.arange(n), 2)[:, None])
        np.testing.assert_array_equal(columns, np.tile(np.arange(n), (2, 1)))


@pytest.mark.parametrize("size", [1, 5])
def test_all_gather_of_uneven_components(strategy, execute, size):
    batch = np.arange(size, dtype=np.float32) + 1
    result = execute(
        strategy,
        lambda x: rx.get_replica_context().all_gather(x * 2, axis=0),
        (strategy.distribute_batch(batch),),
    )
    for part in strategy.experimental_local_results(result):
        np.testing.assert_array_equal(part, batch * 2)


def test_gather_inside_merge_fn(strategy, execute):
    n = strategy.num_replicas_in_sync

    def step(x):
        merge_fn = lambda strategy, x: strategy.gather(x, axis=0)  # noqa: E731
        return rx.get_replica_context().merge_call(merge_fn, args=(x,))

    value = from_ids(strategy, lambda i: np.full(2, i, np.float32))
    for part in strategy.experimental_local_results(execute(strategy, step, (value,))):
        np.testing.assert_array_equal(part, np.repeat(np.arange(n), 2))


def test_a_value_that_is_the_same_on_all_replicas_is_gathered_once_per_replica(strategy, execute):
    n = strategy.num_replicas_in_sync
    captured = jnp.asarray([1.0, 2.0])
    result = execute(strategy, lambda: captured)
    np.testing.assert_array_equal(strategy.gather(result, axis=0), np.tile([1, 2], n))
    with strategy.scope():
        v = rx.Variable([3.0])
    np.testing.assert_array_equal(strategy.gather(v, axis=0), np.full(n, 3))


def test_nests(strategy):
    n = strategy.num_replicas_in_sync
    value = {"a": [from_ids(strategy, lambda i: np.int32([i]))], "b": np.ones((1, 2), np.float32)}
    result = strategy.gather(value, axis=0)
    np.testing.assert_array_equal(result["a"][0], np.arange(n))
    np.testing.assert_array_equal(result["b"], np.ones((n, 2)))


def test_errors(many, execute):
    scalar = from_ids(many, lambda i: np.float32(i))
    rows = from_ids(many, lambda i: np.ones((2, i + 1), np.float32))
    with pytest.raises(ValueError, match=r"gather along axis 0.*shape \(\).*jnp\.reshape"):
        many.gather(scalar, axis=0)
    with pytest.raises(ValueError, match=r"gather along axis 2.*shape \(2, 1\)"):
        many.gather(rows, axis=2)
    with pytest.raises(ValueError, match=r"gather along axis 0 .*every other dim.*\(2, 1\)"):
        many.gather(rows, axis=0)
    for axis in (None, "0", True, (0,)):
        with pytest.raises(ValueError, match="gather needs an int axis"):
            many.gather(rows, axis=axis)
    gathering = lambda x: rx.get_replica_context().all_gather(x, axis=0)  # noqa: E731
    with pytest.raises(ValueError, match=r"gather along axis 0.*shape \(\)"):
        execute(many, gathering, (scalar,))
    with pytest.raises(ValueError, match=r"gather along axis 0 .*every other dim"):
        execute(many, gathering, (rows,))
    wide = many.gather(rows, axis=1)
    assert wide.shape == (2, sum(range(1, many.num_replicas_in_sync + 1)))
