"""Distributed values: what they are, what they refuse, what leaves the library."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from tests.contracts.strategies import local_ids, mirrored, num_copies


def replica_ids(strategy, dtype=jnp.float32):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.asarray(ctx.replica_id_in_sync_group, dtype)
    )


def assert_ordinary(array):
    """A single-device array that JAX mixes with arrays committed to any other device."""
    assert isinstance(array, jax.Array)
    assert len(array.devices()) == 1
    assert not array.committed
    for device in (jax.local_devices()[0], jax.local_devices()[-1]):
        committed = jax.device_put(jnp.ones(array.shape, array.dtype), device)
        assert (array + committed).devices() == {device}


def test_distributed_values_cannot_be_instantiated():
    with pytest.raises(TypeError, match="experimental_distribute_values_from_function"):
        rx.DistributedValues()
    with pytest.raises(TypeError, match="cannot be instantiated"):
        rx.DistributedValues((1, 2))


def test_values_from_function_asks_once_per_replica_in_order(strategy):
    asked = []

    def value_fn(context):
        asked.append((context.replica_id_in_sync_group, context.num_replicas_in_sync))
        return context.replica_id_in_sync_group * 10.0

    value = strategy.experimental_distribute_values_from_function(value_fn)
    count = strategy.num_replicas_in_sync
    assert asked == [(i, count) for i in local_ids(strategy)]
    assert isinstance(value, rx.DistributedValues)
    assert strategy.experimental_local_results(value) == tuple(10.0 * i for i in range(count))


def test_values_from_function_may_return_a_nest(strategy, execute):
    nest = strategy.experimental_distribute_values_from_function(
        lambda ctx: {"a": (jnp.asarray(ctx.replica_id_in_sync_group), None), "b": [2.0]}
    )
    assert isinstance(nest["a"][0], rx.PerReplica)
    assert nest["a"][1] is None
    assert isinstance(nest["b"][0], rx.PerReplica)
    result = execute(strategy, lambda n: n["a"][0] + n["b"][0], args=(nest,))
    values = strategy.experimental_local_results(result)
    assert [float(v) for v in values] == [i + 2.0 for i in range(strategy.num_replicas_in_sync)]


def test_values_from_function_copies_host_arrays(strategy, execute):
    array = np.zeros(2, np.float32)
    value = strategy.experimental_distribute_values_from_function(lambda _: array)
    array += 7
    result = execute(strategy, lambda x: x + 1, args=(value,))
    for component in strategy.experimental_local_results(result):
        np.testing.assert_array_equal(component, [1.0, 1.0])


def test_values_from_function_always_wraps(strategy):
    value = strategy.experimental_distribute_values_from_function(lambda ctx: 1.0)
    assert isinstance(value, rx.PerReplica)


def test_a_host_object_stays_a_host_object_in_an_eager_run(strategy, eager):
    objects = [object() for _ in range(strategy.num_replicas_in_sync)]
    value = strategy.experimental_distribute_values_from_function(
        lambda ctx: objects[ctx.replica_id_in_sync_group]
    )
    own = [objects[replica_id] for replica_id in local_ids(strategy)]
    assert strategy.experimental_local_results(value) == tuple(own)
    seen = []
    eager(strategy, seen.append, args=(value,))
    assert seen == own


@pytest.mark.parametrize("make", [lambda i: object(), lambda i: f"name {i}"], ids=["object", "str"])
def test_a_host_object_is_refused_by_a_compiled_run(strategy, compiled, make):
    value = strategy.experimental_distribute_values_from_function(
        lambda ctx: make(ctx.replica_id_in_sync_group)
    )
    with pytest.raises(ValueError, match="array of numbers, and cannot enter a compiled run"):
        compiled(strategy, lambda v: v, args=(value,))


@pytest.mark.parametrize("replica_id, count", [(-1, 2), (2, 2), (5, 2), (0, 0)])
def test_a_value_context_outside_the_replicas_is_refused(replica_id, count):
    with pytest.raises(ValueError, match=rf"is {replica_id}; expected an int in \[0, {count}\)"):
        rx.experimental.ValueContext(replica_id, count)


def test_a_value_context_has_the_documented_defaults():
    context = rx.experimental.ValueContext()
    assert (context.replica_id_in_sync_group, context.num_replicas_in_sync) == (0, 1)
    assert repr(context) == "ValueContext(replica_id_in_sync_group=0, num_replicas_in_sync=1)"


@pytest.mark.own_results
def test_local_results_of_a_plain_value_is_a_tuple_of_it(strategy):
    marker = object()
    assert strategy.experimental_local_results(marker) == (marker,)
    assert strategy.experimental_local_results(None) == (None,)
    array = jnp.ones(2)
    assert strategy.experimental_local_results(array)[0] is array


def test_local_results_of_a_nest_is_one_nest_per_replica(strategy):
    nest = {"id": replica_ids(strategy), "same": 7, "inner": (replica_ids(strategy), None)}
    results = strategy.experimental_local_results(nest)
    assert len(results) == strategy.num_replicas_in_sync
    for index, result in enumerate(results):
        assert float(result["id"]) == index
        assert result["same"] == 7
        assert float(result["inner"][0]) == index
        assert result["inner"][1] is None


def test_local_results_of_a_variable_are_views_that_know_their_variable(distributed):
    with distributed.scope():
        variable = rx.Variable([1.0, 2.0])
        other = rx.Variable([1.0, 2.0])
    assert isinstance(variable, rx.DistributedValues)
    views = distributed.experimental_local_results(variable)
    assert len(views) == num_copies(distributed)
    extended = distributed.extended
    for replica_id, view in enumerate(views):
        np.testing.assert_array_equal(view, [1.0, 2.0])
        if len(views) == 1 or replica_id in local_ids(distributed):
            assert extended.value_container(view) is variable
        assert extended.value_container(view) is not other
    assert any(variable is v for v in [extended.value_container(view) for view in views])


def test_local_results_of_an_undistributed_variable_is_the_variable(strategy):
    variable = rx.Variable(1.0)
    assert strategy.experimental_local_results(variable)[0] is variable
    assert strategy.extended.value_container(variable) is variable


@pytest.mark.own_results
def test_a_view_is_always_among_the_local_results_of_its_container(distributed):
    with distributed.scope():
        variable = rx.Variable([1.0, 2.0])
    for view in distributed.experimental_local_results(variable):
        container = distributed.extended.value_container(view)
        assert any(view is v for v in distributed.experimental_local_results(container))
    array = jnp.ones(2)
    container = distributed.extended.value_container(array)
    assert array in distributed.experimental_local_results(container)


def test_the_container_of_a_plain_array_is_the_array(strategy):
    array = jnp.ones(3)
    assert strategy.extended.value_container(array) is array


def test_a_view_does_not_keep_its_variable_alive(distributed):
    with distributed.scope():
        variable = rx.Variable([1.0])
    view = distributed.experimental_local_results(variable)[0]
    gone = weakref.ref(variable)
    del variable
    gc.collect()
    assert gone() is None
    assert distributed.extended.value_container(view) is view


def test_components_of_a_run_result_are_ordinary_arrays(strategy, execute):
    result = execute(strategy, lambda x: x + 1, args=(replica_ids(strategy),))
    for component in strategy.experimental_local_results(result):
        assert_ordinary(component)


def test_a_mirrored_result_gives_ordinary_arrays(many, execute):
    total = execute(
        many, lambda x: rx.get_replica_context().all_reduce("SUM", x), (replica_ids(many),)
    )
    assert isinstance(total, rx.Mirrored)
    for component in many.experimental_local_results(total):
        assert_ordinary(component)
    assert_ordinary(total + 1)


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
@pytest.mark.parametrize("axis", [None, 0])
def test_what_reduce_gives_is_an_ordinary_array(strategy, op, axis):
    value = strategy.experimental_distribute_values_from_function(lambda ctx: jnp.ones(2))
    assert_ordinary(strategy.reduce(op, value, axis=axis))
    assert_ordinary(strategy.reduce(op, jnp.ones(2), axis=axis))


def test_what_gather_gives_is_an_ordinary_array(strategy):
    assert_ordinary(strategy.gather(strategy.distribute_batch(np.ones(16)), axis=0))
    assert_ordinary(strategy.gather(strategy.distribute_batch(np.ones(5)), axis=0))


def test_what_leaves_a_compiled_function_is_an_ordinary_array(strategy):
    value = replica_ids(strategy)

    @rx.function
    def total():
        return strategy.reduce("SUM", strategy.run(lambda x: x + 1, args=(value,)), axis=None)

    assert_ordinary(total())


def test_a_cross_replica_read_of_a_variable_is_an_ordinary_array(strategy):
    with strategy.scope():
        variable = rx.Variable([1.0, 2.0])
        synced = rx.Variable(
            1.0,
            synchronization=rx.VariableSynchronization.ON_READ,
            aggregation=rx.VariableAggregation.SUM,
        )
    for array in (variable.read_value(), variable.value, synced.read_value(), variable + 1):
        assert_ordinary(array)


def test_the_documented_sum_of_local_results_works(strategy, execute):
    result = execute(strategy, lambda x: x * 2.0, args=(replica_ids(strategy),))
    total = sum(strategy.experimental_local_results(result))
    count = strategy.num_replicas_in_sync
    assert float(total) == count * (count - 1)


def test_batches_and_reductions_of_different_strategies_mix(strategy, many):
    mine = strategy.reduce("SUM", strategy.distribute_batch(np.ones(8)), axis=0)
    other = many.reduce("SUM", many.distribute_batch(np.ones(8)), axis=0)
    assert float(mine + other) == 16.0


def test_a_per_replica_value_prints_every_component(many):
    text = repr(replica_ids(many))
    first = local_ids(many).start
    assert text.startswith(f"PerReplica:{{\n  {first}: Array({first}., dtype=float32)")
    for index in local_ids(many):
        assert f"  {index}: Array({index}., dtype=float32)" in text


def test_a_mirrored_value_prints_every_copy(many, execute):
    total = execute(many, lambda: rx.get_replica_context().all_reduce("SUM", 1.0))
    count = many.num_replicas_in_sync
    rows = ",\n".join(f"  {i}: Array({count}., dtype=float32)" for i in local_ids(many))
    assert repr(total) == f"Mirrored:{{\n{rows}\n}}"


def test_strategies_print_their_replicas_and_devices():
    assert repr(mirrored(2)) == "<MirroredStrategy: 2 replicas on CPU:0, CPU:1>"
    assert repr(rx.OneDeviceStrategy("CPU:3")) == "<OneDeviceStrategy: 1 replica on CPU:3>"
    assert repr(rx.get_strategy()) == "<DefaultStrategy: 1 replica>"
    table = "MirroredStrategy, 2 replicas\nreplica  device  kind\n"
    assert mirrored(2).describe() == table + "0        CPU:0   cpu\n1        CPU:1   cpu"


def test_a_strategy_describes_every_replica(strategy):
    lines = strategy.describe().splitlines()
    assert len(lines) == 2 + strategy.num_replicas_in_sync
    first = local_ids(strategy).start
    assert lines[2 + first].split()[:2] == [str(first), strategy.extended.worker_devices[0]]
