"""How often the replica function is called: really, or traced."""

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


def test_eager_calls_fn_once_per_replica_in_order_every_time(strategy, eager):
    order = []
    for _ in range(2):
        eager(strategy, lambda: order.append(rx.get_replica_context().replica_id_in_sync_group))
    assert order == list(local_ids(strategy)) * 2


def test_compiled_traces_fn_once_however_many_replicas(strategy, compiled):
    calls = []

    def replica_fn(x):
        calls.append(1)
        return x + 1

    step = compiled.prepare(strategy, replica_fn)
    for _ in range(3):
        result = step(replica_ids(strategy))
    assert len(calls) == 1
    assert components(strategy, result) == [i + 1.0 for i in range(strategy.num_replicas_in_sync)]


def test_a_function_counts_its_traces(strategy):
    step = rx.function(lambda x: x + 1)
    strategy.run(step, args=(replica_ids(strategy),))
    strategy.run(step, args=(replica_ids(strategy),))
    assert step.trace_count == 1


def test_components_of_another_shape_cost_one_trace_per_shape_once(strategy, compiled):
    calls = []

    def replica_fn(x):
        calls.append(x.shape)
        return x * 2

    step = compiled.prepare(strategy, replica_fn)
    count = strategy.num_replicas_in_sync
    step(strategy.distribute_batch(np.ones(2 * count, np.float32)))
    assert calls == [(2,)]
    uneven = strategy.distribute_batch(np.ones(2 * count - 1, np.float32))
    shapes = {part.shape for part in strategy.experimental_local_results(uneven)}
    for _ in range(2):
        step(uneven)
    assert sorted(calls[1:]) == sorted(shapes)
    step(strategy.distribute_batch(np.ones(2 * count, np.float32)))
    assert len(calls) == 1 + len(shapes)


def test_creating_variables_costs_one_more_trace(strategy, compiled):
    calls = []
    kept = []

    def replica_fn(x):
        calls.append(1)
        if not kept:
            kept.append(rx.Variable(1.0, aggregation=rx.VariableAggregation.SUM))
        kept[0].assign_add(x)

    step = compiled.prepare(strategy, replica_fn)
    for _ in range(3):
        step(1.0)
    assert len(calls) == 2
    assert float(kept[0].read_value()) == 1.0 + 3.0 * strategy.num_replicas_in_sync


def test_creating_variables_on_every_call_is_refused(strategy, compiled):
    def replica_fn():
        return rx.Variable(1.0, name="anew").read_value()

    with pytest.raises(ValueError, match=r"creates variables \['anew.*every time it is called"):
        compiled(strategy, replica_fn)


def test_a_python_branch_on_the_replica_id_is_traced_per_replica(many, compiled, branch_notice):
    calls = []

    def replica_fn(x):
        calls.append(1)
        replica_id = rx.get_replica_context().replica_id_in_sync_group
        if replica_id == 0:
            return x * 100.0
        return x + 0.5

    step = compiled.prepare(many, replica_fn)
    with pytest.warns(
        rx.ReplicaxWarning, match=r"test_run_traces\.py:\d+.*once for each"
    ) as caught:
        result = step(jnp.ones(()))
    count = many.num_replicas_in_sync
    assert len(caught) == 1
    line = replica_fn.__code__.co_firstlineno + 3
    assert f"test_run_traces.py:{line}" in str(caught[0].message)
    assert len(calls) == 1 + count
    assert components(many, result) == [100.0] + [1.5] * (count - 1)
    step(jnp.ones(()))
    assert len(calls) == 1 + count


def test_every_use_of_the_replica_id_as_a_python_number_works(many, compiled, branch_notice):
    names = [f"replica {i}" for i in range(many.num_replicas_in_sync)]

    def replica_fn():
        context = rx.get_replica_context()
        length = len(names[context.replica_id_in_sync_group])
        total = context.all_reduce("SUM", float(context.replica_id_in_sync_group))
        return total * 10 + int(context.replica_id_in_sync_group) + length

    with pytest.warns(rx.ReplicaxWarning, match="branches on the replica id"):
        result = compiled(many, replica_fn)
    count = many.num_replicas_in_sync
    total = count * (count - 1) / 2
    assert components(many, result) == [total * 10 + i + 9 for i in range(count)]


def test_a_branch_on_the_replica_id_may_write_variables(many, compiled, branch_notice):
    with many.scope():
        variable = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM)

    def replica_fn():
        value = 1.0 if rx.get_replica_context().replica_id_in_sync_group == 0 else 10.0
        variable.assign_add(value)

    with pytest.warns(rx.ReplicaxWarning, match="branches on the replica id"):
        compiled(many, replica_fn)
    assert float(variable.read_value()) == 1.0 + 10.0 * (many.num_replicas_in_sync - 1)


def test_a_branch_on_the_replica_id_may_return_different_python_values(
    many, compiled, branch_notice
):
    def replica_fn():
        first = rx.get_replica_context().replica_id_in_sync_group == 0
        return 1.0 if first else 2.0

    with pytest.warns(rx.ReplicaxWarning, match="branches on the replica id"):
        result = compiled(many, replica_fn)
    assert components(many, result) == [1.0] + [2.0] * (many.num_replicas_in_sync - 1)


def test_with_one_replica_a_branch_on_the_id_warns_of_nothing(execute):
    strategy = rx.MirroredStrategy(["CPU:0"])

    def replica_fn():
        return 1.0 if rx.get_replica_context().replica_id_in_sync_group == 0 else 2.0

    assert float(execute(strategy, replica_fn)) == 1.0


def test_a_branch_on_a_traced_value_is_still_jaxs_error(many, compiled):
    def replica_fn(x):
        return 1.0 if x > 0 else 2.0

    with pytest.raises(TypeError, match="boolean"):
        compiled(many, replica_fn, args=(replica_ids(many),))


def test_run_functions_eagerly_runs_python_on_every_replica(strategy):
    order = []

    @rx.function
    def step():
        order.append(rx.get_replica_context().replica_id_in_sync_group)

    rx.run_functions_eagerly(True)
    try:
        strategy.run(step)
        strategy.run(step)
    finally:
        rx.run_functions_eagerly(False)
    assert order == list(local_ids(strategy)) * 2
