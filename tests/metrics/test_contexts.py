"""Where a metric may be used, and what that costs."""

import jax
import numpy as np
import pytest

import replicax as rx
from replicax.core.errors import VariableError
from replicax.metrics.mean import Mean
from tests.contracts.strategies import mirrored
from tests.metrics.rows import ROWS, WEIGHTS, batches

COLLECTIVES = ("all-reduce", "all-gather", "collective-permute", "all-to-all", "reduce-scatter")


def mean_in(strategy, **options):
    with strategy.scope():
        return Mean(**options)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("batch", [1], ids=["uneven"])
def test_update_state_communicates_nothing(name, batch):
    strategy = mirrored(3)
    row = ROWS[name]
    with strategy.scope():
        metric = row.make()
    step = rx.function(lambda *data: metric.update_state(*data[:-1], sample_weight=data[-1]))
    data = strategy.distribute_batch(batches(*row.data, WEIGHTS)[batch])
    program = step.lower_run(strategy, *data).compile().as_text()
    assert not [name for name in COLLECTIVES if name in program]


def test_inside_run_the_result_is_that_of_the_replica(execute):
    strategy = mirrored(2)
    mean = mean_in(strategy)

    def step(x):
        mean.update_state(x)
        return mean.result()

    local = execute(strategy, step, (strategy.distribute_batch([1.0, 3.0, 8.0]),))
    assert [float(x) for x in strategy.experimental_local_results(local)] == [2.0, 8.0]
    assert float(mean.result()) == 4.0


def test_calling_a_metric_updates_it_and_gives_the_result(execute):
    strategy = mirrored(2)
    mean = mean_in(strategy)
    local = execute(strategy, mean, (strategy.distribute_batch([1.0, 3.0, 8.0]),))
    assert [float(x) for x in strategy.experimental_local_results(local)] == [2.0, 8.0]


def test_in_a_merge_call_the_result_is_that_of_all_replicas(execute):
    strategy = mirrored(2)
    mean = mean_in(strategy)

    def step(x):
        mean.update_state(x)
        return rx.get_replica_context().merge_call(lambda strategy: mean.result())

    seen = execute(strategy, step, (strategy.distribute_batch([1.0, 3.0, 8.0]),))
    assert {float(x) for x in strategy.experimental_local_results(seen)} == {4.0}


def test_a_function_may_update_read_and_reset():
    strategy = mirrored(3)
    mean = mean_in(strategy)

    @rx.function
    def epoch(x):
        strategy.run(mean.update_state, args=(x,))
        result = mean.result()
        mean.reset_state()
        strategy.run(mean.update_state, args=(x,))
        return result

    batch = strategy.distribute_batch(np.arange(7.0, dtype=np.float32))
    for _ in range(2):
        assert float(epoch(batch)) == pytest.approx(3.0)
    assert float(mean.result()) == pytest.approx(3.0)
    assert float(mean.count) == 7.0


def test_a_reset_starts_over_in_the_scope_and_outside():
    strategy = mirrored(2)
    mean = mean_in(strategy)
    for _ in range(2):
        strategy.run(mean.update_state, args=(strategy.distribute_batch([1.0, 2.0]),))
        assert float(mean.result()) == 1.5
        mean.reset_state()
        assert float(mean.result()) == 0.0
        with strategy.scope():
            mean.reset_state()
            assert float(mean.result()) == 0.0


def test_a_reset_inside_run_starts_every_replica_over(execute):
    strategy = mirrored(2)
    mean = mean_in(strategy)

    def step(x):
        mean.update_state(x + 100)
        mean.reset_state()
        mean.update_state(x)

    execute(strategy, step, (strategy.distribute_batch([1.0, 2.0]),))
    assert float(mean.result()) == 1.5


def test_a_metric_may_be_updated_inside_the_loss(execute):
    strategy = mirrored(2)
    with strategy.scope():
        w = rx.Variable(2.0)
        mean = Mean()

    def step(x):
        def loss():
            losses = w * x
            mean.update_state(losses)
            return losses.sum()

        return rx.grad(loss, w)

    gradient = execute(strategy, step, (strategy.distribute_batch([1.0, 2.0, 6.0]),))
    assert float(strategy.reduce("SUM", gradient, axis=None)) == 9.0
    assert float(mean.result()) == 6.0


def test_a_metric_may_be_updated_inside_scan():
    strategy = mirrored(2)
    mean = mean_in(strategy)

    def step(x):
        jax.lax.scan(lambda carry, row: (carry, mean.update_state(row)), 0, x)

    strategy.run(rx.function(step), args=(strategy.distribute_batch([1.0, 2.0, 6.0]),))
    assert float(mean.result()) == 3.0


def test_update_state_across_replicas_says_to_use_run():
    strategy = mirrored(2)
    mean = mean_in(strategy, name="loss")
    with (
        strategy.scope(),
        pytest.raises(VariableError, match=r"assign_add of variable 'loss/total' in cross-replica"),
    ):
        mean.update_state(1.0)


def test_a_per_replica_value_is_refused_across_replicas():
    strategy = mirrored(2)
    mean = mean_in(strategy)
    with pytest.raises(TypeError, match=r"PerReplica value of 2 replicas cannot be used"):
        mean.update_state(strategy.distribute_batch([1.0, 2.0]))


def test_a_metric_created_in_a_compiled_step_lives_on():
    strategy = mirrored(2)
    made = []

    @rx.function
    def step(x):
        if not made:
            made.append(Mean())
        made[0].update_state(x)

    for _ in range(2):
        strategy.run(step, args=(strategy.distribute_batch([1.0, 2.0, 6.0]),))
    assert float(made[0].result()) == 3.0
    assert float(made[0].count) == 6.0
