"""Sync-on-read variables: local in a replica, aggregated when read across replicas."""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from tests.contracts.strategies import mirrored

ON_READ = rx.VariableSynchronization.ON_READ
SUM = rx.VariableAggregation.SUM
MEAN = rx.VariableAggregation.MEAN
FIRST = rx.VariableAggregation.ONLY_FIRST_REPLICA
NONE = rx.VariableAggregation.NONE
AGGREGATIONS = {"sum": SUM, "mean": MEAN, "first": FIRST}
EXACT_FLOATS = [8.0, 0.1, 1e30, -3.3333333, 1.0000001, 16777217.0, 1e-30, 0.0, 3.4e38]


def variable(strategy, value, aggregation=SUM, **options):
    with strategy.scope():
        return rx.Variable(value, synchronization=ON_READ, aggregation=aggregation, **options)


def copies(strategy, v):
    return [np.asarray(copy) for copy in strategy.experimental_local_results(v)]


def discard(_):
    """Makes a lambda return None."""


def replica_id():
    return rx.get_replica_context().replica_id_in_sync_group


def aggregate(aggregation, values):
    combine = {SUM: np.sum, MEAN: np.mean, FIRST: lambda values: values[0]}
    return combine[aggregation](np.asarray(values, np.float32))


def test_on_read_makes_a_sync_on_read_variable(many):
    v = variable(many, 1.0)
    assert type(v).__name__ == "SyncOnReadVariable"
    assert isinstance(v, rx.DistributedValues)
    assert v.synchronization is ON_READ
    assert not v.trainable


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_replicas_write_locally_and_a_cross_replica_read_aggregates(strategy, execute, name):
    aggregation = AGGREGATIONS[name]
    v = variable(strategy, [1.0, 2.0], aggregation)

    def step():
        scale = replica_id() + 1.0
        v.assign(v * scale)
        v.assign_add([1.0, 1.0])
        v.assign_sub(jnp.full(2, scale))
        return v.read_value()

    n = strategy.num_replicas_in_sync
    local = [np.asarray([1.0, 2.0]) * (i + 1) + 1 - (i + 1) for i in range(n)]
    seen = execute(strategy, step)
    np.testing.assert_allclose(strategy.experimental_local_results(seen), local)
    np.testing.assert_allclose(copies(strategy, v), local)
    expected = {SUM: np.sum, MEAN: np.mean}.get(aggregation, lambda a, axis: a[0])(
        np.asarray(local), axis=0
    )
    np.testing.assert_allclose(v.numpy(), expected, rtol=1e-6)
    with strategy.scope():
        np.testing.assert_allclose(v + 0, expected, rtol=1e-6)
    np.testing.assert_allclose(rx.function(lambda: v * 2)(), expected * 2, rtol=1e-6)
    assert v.value.shape == (2,)
    assert len(v.value.devices()) == 1


def test_sum_with_initial_value_one_reads_the_number_of_replicas(strategy):
    n = strategy.num_replicas_in_sync
    for initial in (1, 1.0, [1.0, 1.0]):
        v = variable(strategy, initial)
        np.testing.assert_array_equal(v.numpy(), np.multiply(initial, n))
        assert v.numpy().dtype == v.dtype


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("total", EXACT_FLOATS)
def test_an_assigned_float_reads_back_exactly_under_sum(num_replicas, total):
    strategy = mirrored(num_replicas)
    v = variable(strategy, 0.0)
    v.assign(total)
    assert v.numpy() == np.float32(total)
    assert len(set(map(float, copies(strategy, v)))) <= 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "uint32", "bool"])
@pytest.mark.parametrize("num_replicas", [3, 8])
def test_an_assigned_value_of_any_dtype_reads_back_exactly_under_sum(num_replicas, dtype):
    v = variable(mirrored(num_replicas), np.zeros(4, bool), dtype=dtype)
    total = jnp.asarray([0, 1, 7, 100]).astype(dtype)
    v.assign(total)
    np.testing.assert_array_equal(v.numpy(), np.asarray(total))
    assert v.dtype == total.dtype


@pytest.mark.parametrize("num_replicas", [3, 8])
def test_assigned_values_read_back_exactly_in_functions_and_merge_fn(num_replicas):
    strategy = mirrored(num_replicas)
    real, whole = variable(strategy, jnp.zeros(len(EXACT_FLOATS))), variable(strategy, 0)

    @rx.function
    def assign(values, number):
        real.assign(values)
        whole.assign(number)
        return real + 0, whole + 0

    seen = assign(jnp.asarray(EXACT_FLOATS), jnp.int32(8))
    np.testing.assert_array_equal(seen[0], np.asarray(EXACT_FLOATS, np.float32))
    np.testing.assert_array_equal(real.numpy(), np.asarray(EXACT_FLOATS, np.float32))
    assert int(seen[1]) == int(whole) == 8

    def merge_fn(_):
        whole.assign(17)
        return whole.read_value()

    def step():
        inside = rx.get_replica_context().merge_call(merge_fn)
        return inside, whole.read_value()

    for run in (strategy.run, lambda fn: strategy.run(rx.function(fn))):
        whole.assign(0)
        inside, local = run(step)
        assert {int(x) for x in strategy.experimental_local_results(inside)} == {17}
        assert sum(int(x) for x in strategy.experimental_local_results(local)) == 17
        assert int(whole) == 17


def test_the_remainder_of_an_integer_goes_to_replica_zero():
    strategy = mirrored(3)
    v = variable(strategy, 0)
    v.assign(8)
    assert [int(copy) for copy in copies(strategy, v)] == [4, 2, 2]
    assert int(v) == 8
    v.assign(-7)
    assert int(v) == -7


@pytest.mark.parametrize("total", [8, -7, 2**31 - 1, -(2**31), 0, 1])
def test_an_assigned_integer_reads_back_exactly_under_sum(many, total):
    v = variable(many, 0)
    v.assign(total)
    assert int(v) == total


@pytest.mark.parametrize("name", ["mean", "first"])
def test_assign_under_mean_and_first_writes_every_copy(strategy, name):
    v = variable(strategy, 1.0, AGGREGATIONS[name])
    v.assign(8.0)
    assert [float(copy) for copy in copies(strategy, v)] == [8] * strategy.num_replicas_in_sync
    assert float(v) == 8
    rx.function(lambda: discard(v.assign(0.1)))()
    assert {float(copy) for copy in copies(strategy, v)} == {float(np.float32(0.1))}


def test_assign_add_across_replicas_is_refused(many):
    v = variable(many, 1.0, name="total")
    n = many.num_replicas_in_sync
    for method in (v.assign_add, v.assign_sub):
        with pytest.raises(ValueError, match=r"'total' in cross-replica context.*inside run"):
            method(1.0)
        with pytest.raises(ValueError, match=r"'total' in cross-replica context.*inside run"):
            rx.function(lambda method=method: discard(method(1.0)))()
        with many.scope(), pytest.raises(ValueError, match="'total' in cross-replica context"):
            method(1.0)
    assert float(v) == n


def test_a_per_replica_value_is_refused_across_replicas(many):
    v = variable(many, 1.0, name="total")
    per_replica = many.run(lambda: replica_id() + 1.0)
    with pytest.raises(ValueError, match=r"'total' got a PerReplica.*strategy\.reduce"):
        v.assign(per_replica)


def test_without_aggregation_a_cross_replica_read_is_refused_and_a_local_one_works(many, execute):
    v = variable(many, 1.0, NONE, name="local")
    execute(many, lambda: discard(v.assign_add(replica_id() + 1.0)))
    n = many.num_replicas_in_sync
    for read in (v.read_value, v.numpy, lambda: v + 1, lambda: rx.function(lambda: v + 1)()):
        with pytest.raises(ValueError, match=r"'local'.*aggregation=NONE.*experimental_local_res"):
            read()
    assert [float(copy) for copy in copies(many, v)] == [i + 2 for i in range(n)]
    v.assign(5.0)
    assert [float(copy) for copy in copies(many, v)] == [5] * n


def test_a_cross_replica_read_in_merge_fn_aggregates(strategy, execute):
    v = {name: variable(strategy, 0.0, how) for name, how in AGGREGATIONS.items()}

    def merge_fn(_):
        return {name: each.read_value() for name, each in v.items()}

    def step():
        for each in v.values():
            each.assign(replica_id() + 1.0)
        return rx.get_replica_context().merge_call(merge_fn)

    n = strategy.num_replicas_in_sync
    seen = execute(strategy, step)
    for part in strategy.experimental_local_results(seen):
        for name, how in AGGREGATIONS.items():
            expected = aggregate(how, [i + 1 for i in range(n)])
            np.testing.assert_allclose(part[name], expected, rtol=1e-6)


def test_copies_stay_independent_over_many_steps(many, execute):
    v = variable(many, 0.0)
    step = execute.prepare(many, lambda: discard(v.assign_add(replica_id() + 1.0)))
    for _ in range(5):
        step()
    n = many.num_replicas_in_sync
    assert [float(copy) for copy in copies(many, v)] == [5.0 * (i + 1) for i in range(n)]
    assert float(v) == 5 * n * (n + 1) / 2


def test_a_reduce_of_the_variable_combines_its_copies(many, execute):
    """The components of the variable are its copies, whatever a cross-replica read gives."""
    n = many.num_replicas_in_sync
    for aggregation in (SUM, FIRST, NONE):
        v = variable(many, 0.0, aggregation)
        result = execute(many, lambda v=v: v.assign(replica_id() + 1.0))
        assert result is v
        assert float(many.reduce("SUM", result, axis=None)) == n * (n + 1) / 2
        assert float(many.reduce("MEAN", {"v": v}, axis=None)["v"]) == (n + 1) / 2


def test_a_gather_of_the_variable_concatenates_its_copies(many, execute):
    v = variable(many, [0.0])
    execute(many, lambda: discard(v.assign([replica_id() + 1.0])))
    np.testing.assert_allclose(many.gather(v, axis=0), np.arange(many.num_replicas_in_sync) + 1.0)
