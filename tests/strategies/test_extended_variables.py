"""Where variables are created, what they belong to, and how their values may travel."""

import gc

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from tests.contracts.strategies import central, mirrored, num_copies

SUM, MEAN = rx.ReduceOp.SUM, rx.ReduceOp.MEAN
ON_READ = rx.VariableSynchronization.ON_READ
AGGREGATION = rx.VariableAggregation


def variable(strategy, value=1.0, **options):
    with strategy.scope():
        return rx.Variable(value, **options)


def is_among(value, values):
    return any(value is one for one in values)


# -- colocation ------------------------------------------------------------------------------


def test_a_colocated_variable_is_where_the_other_one_is(strategy):
    with strategy.scope():
        v = rx.Variable(1.0)
        with strategy.extended.colocate_vars_with(v):
            slot = rx.Variable(jnp.zeros(3))
    assert slot.devices() == v.devices()
    assert type(slot) is type(v)


def test_a_variable_can_be_created_on_one_device(distributed):
    with distributed.scope(), distributed.extended.colocate_vars_with("CPU:6"):
        v = rx.Variable(1.0, aggregation=AGGREGATION.SUM)
    assert [d.id for d in v.devices()] == [6]
    distributed.run(rx.function(lambda: v.assign_add(1.0)))
    distributed.run(lambda: v.assign_add(1.0))
    assert float(v) == 1.0 + 2 * distributed.num_replicas_in_sync
    assert [d.id for d in v.devices()] == [6]


def test_a_variable_cannot_be_created_on_some_of_the_devices():
    strategy = mirrored(3)
    with (
        strategy.scope(),
        strategy.extended.colocate_vars_with(["CPU:0", "CPU:1"]),
        pytest.raises(ValueError, match=r"on all of \['CPU:0', 'CPU:1', 'CPU:2'\]; asked for"),
    ):
        rx.Variable(1.0)


def test_colocation_holds_in_run_too(many, execute):
    made = []

    def fn():
        with many.extended.colocate_vars_with("CPU:7"):
            if not made:
                made.append(rx.Variable(3.0))
        return made[0] + 0

    if execute.name == "eager":  # all replicas must create together

        def fn():
            with many.extended.colocate_vars_with("CPU:7"):
                made.append(rx.Variable(3.0))

    execute(many, fn)
    assert [d.id for d in made[0].devices()] == [7]


def test_colocation_outside_the_scope_is_refused(distributed):
    v = variable(distributed)
    with (
        pytest.raises(RuntimeError, match=r"no strategy's scope.*with strategy\.scope"),
        distributed.extended.colocate_vars_with(v),
    ):
        pass


def test_colocation_with_a_variable_of_another_strategy_is_refused(two):
    other = variable(central(2), name="theirs")
    with (
        two.scope(),
        pytest.raises(ValueError, match="'theirs', which was created under <Central"),
        two.extended.colocate_vars_with(other),
    ):
        pass


# -- ownership -------------------------------------------------------------------------------


def test_a_variable_created_in_scope_is_owned(distributed):
    assert distributed.extended.variable_created_in_scope(variable(distributed)) is True
    assert distributed.extended.variable_created_in_scope(rx.Variable(1.0)) is False
    assert mirrored(2).extended.variable_created_in_scope(variable(distributed)) is False
    assert distributed.extended.variable_created_in_scope(jnp.ones(1)) is False


def test_a_variable_created_in_run_is_owned(distributed, execute):
    made = []

    def fn():
        if not made:
            made.append(rx.Variable(1.0))

    if distributed.num_replicas_in_sync > 1 and not execute.is_compiled:

        def fn():
            made.append(rx.Variable(1.0))

    execute(distributed, fn)
    assert distributed.extended.variable_created_in_scope(made[0])


READS = {
    "mirrored": ({}, lambda n: 2.0),
    "sum on read": (
        {"synchronization": ON_READ, "aggregation": AGGREGATION.SUM},
        lambda n: 2.0 * n,
    ),
    "mean on read": ({"synchronization": ON_READ, "aggregation": AGGREGATION.MEAN}, lambda n: 2.0),
    "first on read": (
        {"synchronization": ON_READ, "aggregation": AGGREGATION.ONLY_FIRST_REPLICA},
        lambda n: 2.0,
    ),
}


@pytest.mark.parametrize("case", READS)
def test_read_var_gives_the_aggregate(strategy, across, case):
    options, expected = READS[case]
    v = variable(strategy, 2.0, **options)
    value = across(lambda: strategy.extended.read_var(v))
    assert not isinstance(value, rx.Variable)
    assert float(value) == expected(strategy.num_replicas_in_sync)


def test_read_var_in_merge_call(many, execute):
    v = variable(many, 2.0, synchronization=ON_READ, aggregation=AGGREGATION.SUM)

    def fn():
        v.assign_add(1.0)
        return rx.get_replica_context().merge_call(lambda s: s.extended.read_var(v))

    n = many.num_replicas_in_sync
    result = execute(many, fn)
    assert float(many.experimental_local_results(result)[0]) == 3.0 * n


# -- containers ------------------------------------------------------------------------------


@pytest.mark.parametrize("synchronization", ["AUTO", "ON_READ"])
def test_a_copy_of_a_variable_is_among_the_results_of_its_container(distributed, synchronization):
    options = {"synchronization": rx.VariableSynchronization[synchronization]}
    v = variable(distributed, [1.0, 2.0], aggregation=AGGREGATION.SUM, **options)
    container = distributed.extended.value_container
    for value in distributed.experimental_local_results(v):
        assert container(value) is v
        assert is_among(value, distributed.experimental_local_results(container(value)))
        assert value in distributed.experimental_local_results(container(value))


def test_a_value_returned_by_run_is_among_the_results_of_its_container(strategy, execute):
    container = strategy.extended.value_container
    result = execute(strategy, lambda: jnp.ones(2))
    for value in strategy.experimental_local_results(result):
        assert container(value) is value
        assert is_among(value, strategy.experimental_local_results(container(value)))


def test_the_container_of_a_copy_whose_variable_is_gone_is_the_copy(distributed):
    v = variable(distributed, [1.0, 2.0])
    views = distributed.experimental_local_results(v)
    del v
    gc.collect()
    container = distributed.extended.value_container
    for value in views:
        assert container(value) is value
        assert is_among(value, distributed.experimental_local_results(container(value)))
        np.testing.assert_array_equal(value, [1.0, 2.0])


def test_the_container_of_anything_else_is_itself(strategy):
    for value in (3, "text", jnp.ones(1), rx.Variable(1.0), variable(strategy)):
        assert strategy.extended.value_container(value) is value


# -- locality --------------------------------------------------------------------------------


def test_all_reduce_makes_a_per_replica_value_mirrored(many, execute):
    value = execute(many, lambda: jnp.float32(2))
    assert isinstance(value, rx.PerReplica)
    mirrored_value = execute(
        many, lambda x: rx.get_replica_context().all_reduce(SUM, x), args=(value,)
    )
    assert isinstance(mirrored_value, rx.Mirrored)
    assert float(mirrored_value) == 2.0 * many.num_replicas_in_sync


def test_a_mirrored_value_is_used_as_an_array_and_a_per_replica_value_is_not(many):
    value = many.run(lambda: jnp.float32(2))
    with pytest.raises(TypeError, match=r"PerReplica value of \d replicas cannot be used.*reduce"):
        value + 1
    mirrored_value = many.run(lambda: rx.get_replica_context().all_reduce(MEAN, 2.0))
    assert float(mirrored_value + 1) == 3.0


def test_reduce_to_gives_the_locality_of_a_variable_which_update_takes(many, execute):
    v = variable(many, 1.0)

    def merge_fn(strategy, x):
        (local,) = strategy.extended.batch_reduce_to(SUM, [(x, v)])
        strategy.extended.update(v, lambda v, x: v.assign(x), args=(local,))

    def fn():
        x = rx.get_replica_context().replica_id_in_sync_group + 1.0
        rx.get_replica_context().merge_call(merge_fn, args=(x,))

    execute(many, fn)
    n = many.num_replicas_in_sync
    assert [float(c) for c in many.experimental_local_results(v)] == [n * (n + 1) / 2] * (
        num_copies(many)
    )


def test_a_mirrored_value_goes_back_into_run(many, execute):
    v = variable(many)
    whole = many.extended.broadcast_to(jnp.asarray([1.0, 2.0]), many.extended.worker_devices)
    total = many.extended.reduce_to(SUM, 1.0, v)
    result = execute(many, lambda x, y: x * y, args=(whole, total))
    for value in many.experimental_local_results(result):
        np.testing.assert_allclose(value, np.asarray([1.0, 2.0]) * many.num_replicas_in_sync)


def test_a_variable_has_the_locality_that_update_takes(many, across):
    v, w = variable(many, 1.0), variable(many, 5.0)
    across(lambda: many.extended.update(v, lambda v, w: v.assign(w + 1), args=(w,)))
    assert float(v) == 6.0


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_what_all_replicas_assign_together_must_be_the_same(compiled):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])
    with strategy.scope():
        v = rx.Variable([1.0, 2.0], name="v")

    def step(x):
        total = rx.get_replica_context().all_reduce("SUM", x.sum())
        strategy.extended.assign_together([v], [v + total])

    def drift(x):
        strategy.extended.assign_together([v], [v + x.sum()])

    batch = strategy.distribute_batch(np.float32([1.0, 2.0, 3.0]))
    strategy.run(rx.function(step) if compiled else step, args=(batch,))
    np.testing.assert_array_equal(v.numpy(), [7.0, 8.0])
    text = "differs between replicas" if compiled else "got different values for variable 'v'"
    with pytest.raises(ValueError, match=text):
        strategy.run(rx.function(drift) if compiled else drift, args=(batch,))
    np.testing.assert_array_equal(v.numpy(), [7.0, 8.0])
