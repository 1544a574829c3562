"""``merge_call``: every replica stops, one function runs, all continue."""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from tests.contracts.strategies import local_ids


def replica_ids(strategy):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.asarray(ctx.replica_id_in_sync_group, jnp.float32)
    )


def components(strategy, result):
    return [float(value) for value in strategy.experimental_local_results(result)]


def merge(merge_fn, *args, **kwargs):
    return rx.get_replica_context().merge_call(merge_fn, args=args, kwargs=kwargs)


def test_replicas_stop_merge_and_continue_in_order(strategy, eager):
    order = []

    def replica_fn():
        context = rx.get_replica_context()
        order.append(f"a{context.replica_id_in_sync_group}")
        context.merge_call(lambda s: order.append("merge"))
        order.append(f"b{context.replica_id_in_sync_group}")

    eager(strategy, replica_fn)
    ids = local_ids(strategy)
    assert order == [*(f"a{i}" for i in ids), "merge", *(f"b{i}" for i in ids)]


def test_merge_fn_runs_once_when_compiled(strategy, compiled):
    order = []

    def replica_fn():
        order.append("a")
        merge(lambda s: order.append("merge"))
        order.append("b")

    compiled(strategy, replica_fn)
    assert order == ["a", "merge", "b"]


def test_merge_fn_gets_the_strategy_first(strategy, execute):
    seen = []
    execute(strategy, lambda: merge(lambda s, x, *, y: seen.append((s, x, y)), 1, y="k"))
    assert seen == [(strategy, 1, "k")]


def test_arguments_that_differ_arrive_per_replica(many, execute):
    kinds = []

    def merge_fn(strategy, value):
        kinds.append(isinstance(value, rx.PerReplica))
        return strategy.reduce("SUM", value, axis=None)

    result = execute(many, lambda x: merge(merge_fn, x) + 0.0, args=(replica_ids(many),))
    count = many.num_replicas_in_sync
    assert kinds == [True]
    assert components(many, result) == [count * (count - 1) / 2] * count


def test_arguments_that_are_computed_arrive_per_replica_even_when_equal(many, execute):
    kinds = []
    execute(many, lambda: merge(lambda s, v: kinds.append(type(v)), jnp.ones(()) + 1))
    assert len(kinds) == 1 and issubclass(kinds[0], rx.PerReplica)


def test_the_same_object_arrives_bare(strategy, execute):
    captured = jnp.ones(2)
    marker = object()
    seen = []

    def replica_fn():
        merge(lambda s, *args: seen.extend(args), captured, marker, "text", 3, None)

    execute(strategy, replica_fn)
    if isinstance(seen[0], rx.PerReplica):  # another worker may have captured another array
        assert strategy.extended.mesh.spans_workers
        assert not execute.is_compiled
    else:
        assert seen[0] is captured
    assert seen[1] is marker
    assert seen[2:] == ["text", 3, None]


def test_a_variable_arrives_as_itself(strategy, execute):
    with strategy.scope():
        variable = rx.Variable(2.0)
    seen = []
    execute(strategy, lambda: merge(lambda s, v: seen.append(v is variable), variable))
    assert seen == [True]


def test_arguments_and_results_may_be_nests(strategy, execute):
    def merge_fn(strategy, nest, *, scale):
        total = strategy.reduce("SUM", nest["x"][0], axis=None)
        return {"total": total * scale, "same": nest["x"], "none": None}

    def replica_fn(x):
        result = merge(merge_fn, {"x": [x]}, scale=2.0)
        assert result["none"] is None
        return result["total"] + result["same"][0]

    result = execute(strategy, replica_fn, args=(replica_ids(strategy),))
    count = strategy.num_replicas_in_sync
    assert components(strategy, result) == [count * (count - 1) + i for i in range(count)]


def test_a_per_replica_result_is_unwrapped_for_each_replica(strategy, execute):
    seen = []

    def replica_fn(x):
        mine = merge(lambda s, value: value, x * 3)
        seen.append(isinstance(mine, rx.DistributedValues))
        return mine + 1

    result = execute(strategy, replica_fn, args=(replica_ids(strategy),))
    assert seen and not any(seen)
    ids = range(strategy.num_replicas_in_sync)
    assert components(strategy, result) == [3.0 * i + 1 for i in ids]


@pytest.mark.parametrize("answer", [None, 5, "text", (1, [2.0], {"k": None})])
def test_none_and_objects_come_back_as_they_are(strategy, execute, answer):
    seen = []
    execute(strategy, lambda: seen.append(merge(lambda s: answer)))
    assert seen and all(value == answer for value in seen)


def test_what_merge_fn_reduced_is_one_value_for_all(strategy, execute):
    def replica_fn(x):
        return merge(lambda s, v: s.reduce("MEAN", v, axis=None), x)

    result = execute(strategy, replica_fn, args=(replica_ids(strategy),))
    assert float(result) == (strategy.num_replicas_in_sync - 1) / 2


def test_merge_fn_may_make_an_array_where_components_differ_in_size(many, execute):
    batch = many.distribute_batch(np.ones(2 * many.num_replicas_in_sync - 1, np.float32))
    with many.scope():
        variable = rx.Variable([0.0, 0.0])

    def merge_fn(strategy, value):
        total = strategy.reduce("SUM", value, axis=None)
        variable.assign(total * jnp.array([1.0, 2.0]))  # another object in each trace
        return total + jnp.array([1.0, 2.0])

    result = execute(many, lambda x: merge(merge_fn, x.sum()), args=(batch,))
    count = 2 * many.num_replicas_in_sync - 1
    np.testing.assert_array_equal(result, [count + 1, count + 2])
    np.testing.assert_array_equal(variable, [count, 2 * count])


def test_merge_fn_may_assign_a_variable_once_for_all(strategy, execute):
    with strategy.scope():
        variable = rx.Variable(1.0)

    def merge_fn(strategy, value):
        variable.assign_add(strategy.reduce("SUM", value, axis=None))

    def replica_fn(x):
        merge(merge_fn, x + 1)
        return variable.read_value() * 1.0

    result = execute(strategy, replica_fn, args=(replica_ids(strategy),))
    count = strategy.num_replicas_in_sync
    expected = 1.0 + count * (count + 1) / 2
    assert float(variable.read_value()) == expected
    assert components(strategy, result) == [expected] * count


def test_merge_fn_may_look_at_local_results(strategy, execute):
    def merge_fn(strategy, value):
        return sum(strategy.experimental_local_results(value))

    result = execute(strategy, lambda x: merge(merge_fn, x) * 1.0, args=(replica_ids(strategy),))
    count = strategy.num_replicas_in_sync
    assert components(strategy, result) == [count * (count - 1) / 2] * count


def test_several_merge_calls_follow_each_other(strategy, execute):
    def replica_fn(x):
        for _ in range(3):
            x = merge(lambda s, v: s.reduce("SUM", v, axis=None), x) + x * 0
        return x

    result = execute(strategy, replica_fn, args=(jnp.ones(()),))
    count = strategy.num_replicas_in_sync
    assert components(strategy, result) == [float(count**3)] * count


def test_a_local_smuggled_past_the_arguments_is_refused_when_compiled(many, compiled):
    def replica_fn(x):
        return merge(lambda s: x * 2)

    with pytest.raises(ValueError, match=r"pass that through merge_call\(merge_fn, args=\.\.\.\)"):
        compiled(many, replica_fn, args=(replica_ids(many),))
    assert components(many, many.run(lambda x: x, args=(replica_ids(many),)))[1] == 1.0


def test_gather_works_in_merge_fn(strategy, execute):
    def replica_fn(x):
        return merge(lambda s, v: s.gather(v, axis=0), x[None] + 1)

    result = execute(strategy, replica_fn, args=(replica_ids(strategy),))
    expected = np.arange(1, strategy.num_replicas_in_sync + 1)
    np.testing.assert_array_equal(result, expected)


def test_merge_call_outside_every_run_calls_the_function():
    assert rx.get_replica_context().merge_call(lambda s, x: (s, x), args=(3,)) == (
        rx.get_strategy(),
        3,
    )
