"""Mirrored variables: every write reaches every copy, by the aggregation in a replica."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from tests.contracts.strategies import mirrored, num_copies

SUM = rx.VariableAggregation.SUM
MEAN = rx.VariableAggregation.MEAN
FIRST = rx.VariableAggregation.ONLY_FIRST_REPLICA
AGGREGATIONS = {"sum": SUM, "mean": MEAN, "first": FIRST}


def variable(strategy, value, **options):
    with strategy.scope():
        return rx.Variable(value, **options)


def copies(strategy, v):
    return [np.asarray(copy) for copy in strategy.experimental_local_results(v)]


def discard(_):
    """Makes a lambda return None."""


def replica_id():
    return rx.get_replica_context().replica_id_in_sync_group


def aggregate(aggregation, values):
    combine = {SUM: np.sum, MEAN: np.mean, FIRST: lambda values: values[0]}
    return combine[aggregation](np.asarray(values, np.float32))


def assert_copies(strategy, v, expected):
    held = copies(strategy, v)
    assert len(held) == num_copies(strategy)
    for copy in held:
        assert copy.dtype == v.dtype
        np.testing.assert_allclose(copy, expected, rtol=1e-6)
    np.testing.assert_allclose(v.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("synchronization", ["AUTO", "ON_WRITE"])
def test_auto_and_on_write_make_a_mirrored_variable(many, synchronization):
    v = variable(many, 1.0, synchronization=rx.VariableSynchronization[synchronization])
    assert isinstance(v, rx.DistributedValues)
    assert isinstance(v, rx.Variable)
    assert len(copies(many, v)) == num_copies(many)
    assert v.synchronization is rx.VariableSynchronization[synchronization]
    assert v.aggregation is rx.VariableAggregation.NONE
    assert v.trainable


def test_a_cross_replica_assignment_reaches_every_copy(strategy):
    v = variable(strategy, [1.0, 2.0])
    with strategy.scope():
        assert v.assign([3.0, 4.0]) is v
        assert_copies(strategy, v, [3, 4])
        v.assign_add(jnp.asarray([1.0, 1.0]))
        assert_copies(strategy, v, [4, 5])
        v.assign_sub(np.asarray([0.5, 0.5], np.float32))
    assert_copies(strategy, v, [3.5, 4.5])


def test_a_cross_replica_assignment_in_a_function_reaches_every_copy(strategy):
    v = variable(strategy, [1.0, 2.0])

    @rx.function
    def change(x):
        v.assign(v * 2)
        v.assign_add(x)
        v.assign_sub([1.0, 1.0])
        return v + 0

    result = change(jnp.asarray([10.0, 20.0]))
    np.testing.assert_allclose(result, [11, 23])
    assert_copies(strategy, v, [11, 23])
    with strategy.scope():
        change(jnp.zeros(2))
    assert_copies(strategy, v, [21, 45])


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_a_replica_assignment_is_aggregated(strategy, execute, name):
    aggregation = AGGREGATIONS[name]
    values = {
        m: variable(strategy, 10.0, aggregation=aggregation) for m in ("assign", "add", "sub")
    }

    def step():
        x = jnp.float32(2) * (replica_id() + 1)
        values["assign"].assign(x)
        values["add"].assign_add(x)
        values["sub"].assign_sub(x)
        return values["add"].read_value()

    seen = execute(strategy, step)
    n = strategy.num_replicas_in_sync
    total = aggregate(aggregation, [2 * (i + 1) for i in range(n)])
    assert_copies(strategy, values["assign"], total)
    assert_copies(strategy, values["add"], 10 + total)
    assert_copies(strategy, values["sub"], 10 - total)
    for value in strategy.experimental_local_results(seen):
        np.testing.assert_allclose(value, 10 + total, rtol=1e-6)


def test_assign_add_of_one_under_sum_adds_the_number_of_replicas(strategy, execute):
    number, array = (variable(strategy, 0.0, aggregation=SUM) for _ in range(2))
    captured = jnp.float32(1)

    def step():
        number.assign_add(1.0)
        array.assign_add(captured)

    execute(strategy, step)
    assert_copies(strategy, number, strategy.num_replicas_in_sync)
    assert_copies(strategy, array, strategy.num_replicas_in_sync)


def test_a_number_under_mean_and_first_counts_once(strategy, execute):
    mean, first = (
        variable(strategy, 0.0, aggregation=MEAN),
        variable(strategy, 0, aggregation=FIRST),
    )

    def step():
        mean.assign_add(1.0)
        first.assign_add(1)

    execute(strategy, step)
    assert_copies(strategy, mean, 1)
    assert_copies(strategy, first, 1)
    assert first.dtype == jnp.int32


def test_integers_aggregate_exactly(many, execute):
    total = variable(many, jnp.int32(2**24), aggregation=SUM)
    execute(many, lambda: discard(total.assign_add(replica_id() + 1)))
    n = many.num_replicas_in_sync
    assert total.numpy() == 2**24 + n * (n + 1) // 2
    assert total.dtype == jnp.int32


def test_a_replica_sees_its_own_writes_at_once(strategy, execute):
    v = variable(strategy, 1.0, aggregation=SUM)

    def step():
        before = v.read_value()
        v.assign_add(1.0)
        between = v + 0
        v.assign(v * 0 + 5.0)
        return before, between, v + 0

    n = strategy.num_replicas_in_sync
    seen = execute(strategy, step)
    for before, between, after in strategy.experimental_local_results(seen):
        np.testing.assert_allclose((before, between, after), (1, 1 + n, 5 * n))


def test_a_variable_passed_to_run_arrives_as_itself_and_returns_as_itself(strategy, execute):
    v = variable(strategy, 3.0, aggregation=SUM)

    def step(arg):
        assert arg is v
        arg.assign_add(1.0)
        return arg, {"twice": arg * 2}

    result, twice = execute(strategy, step, (v,))
    assert result is v
    n = strategy.num_replicas_in_sync
    for part in strategy.experimental_local_results(twice):
        np.testing.assert_allclose(part["twice"], 2 * (3 + n))


def test_aggregation_none_works_on_one_replica_and_in_merge_fn(strategy, execute):
    v = variable(strategy, 1.0)

    def merge_fn(strategy, x):
        v.assign_add(strategy.reduce("SUM", x, axis=None))
        return v.read_value()

    def step():
        return rx.get_replica_context().merge_call(merge_fn, args=(replica_id() + 1.0,))

    n = strategy.num_replicas_in_sync
    seen = execute(strategy, step)
    assert_copies(strategy, v, 1 + n * (n + 1) / 2)
    for value in strategy.experimental_local_results(seen):
        np.testing.assert_allclose(value, v.numpy())


def test_update_reaches_every_copy(strategy, execute):
    v = variable(strategy, 1.0)

    def merge_fn(strategy, x):
        reduced = strategy.extended.reduce_to("SUM", x, v)
        strategy.extended.update(v, lambda v, x: v.assign_sub(x), args=(reduced,))

    def step():
        rx.get_replica_context().merge_call(merge_fn, args=(replica_id() + 1.0,))
        return v + 0

    n = strategy.num_replicas_in_sync
    execute(strategy, step)
    assert_copies(strategy, v, 1 - n * (n + 1) / 2)


def test_aggregation_none_in_a_replica_names_the_variable_and_the_fix(many, execute):
    v = variable(many, 1.0, name="weights")
    for method in ("assign", "assign_add", "assign_sub"):
        with pytest.raises(ValueError, match=r"'weights'.*aggregation=NONE.*Create it with agg"):
            execute(many, lambda method=method: discard(getattr(v, method)(2.0)))
    assert_copies(many, v, 1)


def test_a_per_replica_value_is_refused_across_replicas(many):
    v = variable(many, 1.0, name="weights")
    per_replica = many.run(lambda: replica_id() + 1.0)
    for method in (v.assign, v.assign_add, v.assign_sub):
        with pytest.raises(ValueError, match=r"'weights' got a PerReplica.*strategy\.reduce"):
            method(per_replica)
    with pytest.raises(ValueError, match=r"'weights' got a PerReplica.*reduce_to"):
        many.extended.update(v, lambda v, x: v.assign(x), args=(per_replica,))
    with pytest.raises(ValueError, match=r"'weights' got a PerReplica.*reduce_to"):
        many.extended.update(v, lambda v, x: v.assign(x), kwargs={"x": {"a": per_replica}})
    assert_copies(many, v, 1)


def test_a_per_replica_value_is_refused_in_merge_fn(many, execute):
    v = variable(many, 1.0, name="weights")

    def assigning():
        merge_fn = lambda _, x: discard(v.assign(x))  # noqa: E731
        rx.get_replica_context().merge_call(merge_fn, args=(replica_id() + 1.0,))

    def updating():
        merge_fn = lambda s, x: discard(s.extended.update(v, lambda v, x: v.assign(x), (x,)))  # noqa: E731
        rx.get_replica_context().merge_call(merge_fn, args=(replica_id() + 1.0,))

    for step in (assigning, updating):
        with pytest.raises(ValueError, match="'weights' got a PerReplica"):
            execute(many, step)
    assert_copies(many, v, 1)


def test_a_variable_works_outside_its_scope(strategy):
    v = variable(strategy, 2.0, aggregation=SUM)
    assert float(v * 3) == 6
    v.assign_add(1.0)
    assert_copies(strategy, v, 3)
    rx.function(lambda: discard(v.assign_add(1.0)))()
    assert_copies(strategy, v, 4)
    seen = rx.get_strategy().run(lambda: v.assign_add(1.0) + 0)
    assert float(seen) == 5
    assert_copies(strategy, v, 5)


@pytest.mark.parametrize("num_others", [1, 2])
def test_another_strategy_refuses_the_variable_and_names_both(many, execute, num_others):
    v = variable(many, 2.0, name="weights", aggregation=SUM)
    other = mirrored(num_others)
    both = rf"'weights'.*{type(many).__name__}: {many.num_replicas_in_sync} replicas.*"
    both += rf"MirroredStrategy: {other.num_replicas_in_sync} replica"
    for use in (lambda: v + 1, lambda: v.assign(1.0), lambda: v.assign_add(1.0)):
        with other.scope(), pytest.raises(ValueError, match=both):
            use()
        with pytest.raises(ValueError, match=both):
            execute(other, lambda use=use: discard(use()))
    assert_copies(many, v, 2)


def test_a_plain_variable_is_read_in_run(strategy, execute):
    plain = rx.Variable([1.0, 2.0])
    seen = execute(strategy, lambda: plain * (replica_id() + 1))
    for i, value in enumerate(strategy.experimental_local_results(seen)):
        np.testing.assert_allclose(value, np.asarray([1.0, 2.0]) * (i + 1))
    plain.assign([3.0, 4.0])
    seen = execute(strategy, lambda: plain * 2)
    for value in strategy.experimental_local_results(seen):
        np.testing.assert_allclose(value, [6, 8])


def test_a_plain_variable_is_updated_in_run_on_one_replica_only(strategy, execute):
    plain = rx.Variable(1.0, name="counter", aggregation=SUM)
    step = lambda: discard(plain.assign_add(1.0))  # noqa: E731
    if strategy.num_replicas_in_sync == 1:
        for expected in (2, 3, 4):
            execute(strategy, step)
            assert float(plain) == expected
        assert float(plain + jnp.float32(1)) == 5
        return
    with pytest.raises(ValueError, match=r"'counter' inside run on \d replicas.*strategy\.scope"):
        execute(strategy, step)
    assert float(plain) == 1


def test_plain_and_distributed_variables_mix_in_one_function(many):
    v, plain = variable(many, 1.0, aggregation=SUM), rx.Variable(10.0)

    @rx.function
    def step():
        many.run(lambda: discard(v.assign_add(plain + 0)))
        plain.assign(v * 2)
        return plain + v

    n = many.num_replicas_in_sync
    value, other = 1.0, 10.0
    for _ in range(3):
        value += n * other
        other = 2 * value
        np.testing.assert_allclose(step(), value + other)
        plain.assign_sub(1.0)
        other -= 1
    assert isinstance(plain.value, jax.Array)
    assert len(plain.value.devices()) == 1
    np.testing.assert_allclose(plain + jnp.ones(()), other + 1)
