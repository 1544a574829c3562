"""`explain` under every strategy: it says what the program has, and leaves no trace of itself."""

import numpy as np

import replicax as rx
from replicax.costs.program import inspect_step
from tests.costs import hlo

MOMENTUM = 0.5


def training(strategy):
    """A step with gradients, a slot, a metric and a reduction; its variables and its batch."""
    with strategy.scope():
        w = rx.Variable(np.linspace(0, 1, 24, dtype=np.float32).reshape(6, 4), name="w")
        with strategy.extended.colocate_vars_with(w):
            slot = rx.Variable(np.zeros((6, 4), np.float32), trainable=False, name="slot")
        seen = rx.Variable(
            0.0,
            name="seen",
            synchronization=rx.VariableSynchronization.ON_READ,
            aggregation=rx.VariableAggregation.SUM,
        )

    def replica_step(x):
        gradient = rx.grad(lambda: ((x @ w) ** 2).mean(), w)
        seen.assign_add(1.0)
        return rx.get_replica_context().all_reduce("SUM", gradient)

    @rx.function
    def step(x):
        slot.assign(MOMENTUM * slot + strategy.run(replica_step, args=(x,)))
        w.assign_sub(0.1 * slot)
        return strategy.reduce("SUM", strategy.run(lambda x: x.sum(), args=(x,)), axis=None)

    count = 2 * strategy.num_replicas_in_sync
    rows = np.arange(6.0 * count, dtype=np.float32).reshape(count, 6) / count
    return step, (w, slot, seen), strategy.distribute_batch(rows)


def test_an_explained_step_runs_as_if_nobody_had_looked(strategy):
    explained, plain = training(strategy), training(strategy)
    before = [variable.numpy() for variable in explained[1]]
    rx.explain(explained[0], explained[2])
    for variable, value in zip(explained[1], before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    traces = explained[0].trace_count
    assert traces == 1
    for _ in range(3):
        results = [np.asarray(step(batch)) for step, _, batch in (explained, plain)]
        np.testing.assert_array_equal(*results)
    assert explained[0].trace_count == plain[0].trace_count == traces
    for pair in zip(explained[1], plain[1], strict=True):
        np.testing.assert_array_equal(*(variable.numpy() for variable in pair))


def test_the_collectives_are_those_of_the_compiled_program(strategy):
    step, _, batch = training(strategy)
    found = inspect_step(step, (batch,))
    text = step.lower(batch).compile().as_text()
    told = [(one.kind, size) for one in found.collectives for size in one.operand_bytes]
    assert sorted(told) == sorted(hlo.operands_in(text).elements())
    is_one = strategy.num_replicas_in_sync == 1
    assert bool(found.traced_collectives) != is_one
    assert found.num_replicas == strategy.num_replicas_in_sync


def test_the_memory_is_what_xla_has_planned(strategy):
    step, _, batch = training(strategy)
    found = inspect_step(step, (batch,))
    planned, memory = step.lower(batch).compile().memory_analysis(), found.memory
    assert memory.state + memory.arguments == planned.argument_size_in_bytes
    assert memory.total == (
        planned.argument_size_in_bytes
        + planned.output_size_in_bytes
        - planned.alias_size_in_bytes
        + planned.temp_size_in_bytes
        + planned.generated_code_size_in_bytes
    )


def test_state_is_told_apart_by_what_it_is_for(strategy):
    step, (w, _, _), batch = training(strategy)
    by_name = {one.name: one for one in inspect_step(step, (batch,), compiles=False).state}
    assert by_name["slot"].slot_of == w.name
    assert by_name["w"].slot_of is None
    assert by_name["w"].is_trainable
    assert by_name["w"].num_bytes == by_name["slot"].num_bytes == 6 * 4 * 4


def test_a_run_is_explained_as_strategy_run_would_make_it(strategy):
    with strategy.scope():
        w = rx.Variable(np.ones(4, np.float32), name="w")

    @rx.function
    def replica_step(x):
        return rx.get_replica_context().all_reduce("SUM", (w * x).sum())

    count = strategy.num_replicas_in_sync
    batch = strategy.distribute_batch(np.ones((count, 4), np.float32))
    found = replica_step.explain(batch, strategy=strategy).program
    sums = [one for one in found.traced_collectives if one.kind == "all-reduce"]
    assert [one.num_bytes for one in sums] == ([4] if count > 1 else [])
    strategy.run(replica_step, args=(batch,))
    assert replica_step.trace_count == 1
