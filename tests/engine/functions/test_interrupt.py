"""Ctrl-C in the middle of a step never leaves some variables written and others not."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.backend import runahead
from replicax.engine.functions import launching

NUM_VARIABLES = 50
SHOTS_PER_CASE = 100

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def arrays_of(variables):
    """Not with numpy(): a value that was handed out is not donated in the next step."""
    return [v._storage.live_array() for v in variables]


@pytest.mark.parametrize("donate", [True, False])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_an_interrupted_step_happened_for_all_variables_or_for_none(
    interrupted, num_replicas, donate
):
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    with strategy.scope():
        variables = [rx.Variable(jnp.zeros(2)) for _ in range(NUM_VARIABLES)]

    @rx.function(donate=donate)
    def step(x):
        for variable in variables:
            variable.assign(variable + x)

    def for_ever():
        while True:
            step(1.0)

    def values():
        return {float(np.asarray(array)[0]) for array in arrays_of(variables)}

    step(1.0)
    last = 1.0
    delays = itertools.cycle(np.geomspace(2e-5, 3e-3, 37).tolist())
    for delay in itertools.islice(delays, SHOTS_PER_CASE):
        assert interrupted(for_ever, delay)
        found = values()
        assert len(found) == 1
        now = found.pop()
        assert now >= last
        step(1.0)
        assert values() == {now + 1}
        last = now + 1
    runahead.wait()
    assert values() == {float(v.numpy()[0]) for v in variables}


def test_a_step_whose_compilation_was_interrupted_is_traced_anew(monkeypatch):
    """JAX may take the next attempt to compile the same program for a recursion."""
    v = rx.Variable(0.0)
    step = rx.function(lambda x: v.assign_add(x))

    def interrupt(lowered):
        raise KeyboardInterrupt("shot")

    with monkeypatch.context() as patch:
        patch.setattr(launching, "compile_lowered", interrupt)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt, match="shot"):
                step(1.0)
    for _ in range(4):
        step(1.0)
    assert step.trace_count == 3
    assert float(v) == 4.0


def test_an_interrupted_eager_run_leaves_a_strategy_that_works(interrupted):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        total = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM)

    def replica_fn():
        context = rx.get_replica_context()
        total.assign_add(1.0)
        return context.all_reduce("SUM", context.replica_id_in_sync_group + 1.0)

    def for_ever():
        while True:
            strategy.run(replica_fn)

    for delay in np.geomspace(2e-4, 1e-2, 40).tolist():
        assert interrupted(for_ever, delay)
        assert not rx.has_strategy()
        before = float(total)
        assert float(strategy.run(replica_fn)) == 3.0
        assert float(total) == before + 2.0
        copies = {float(copy) for copy in strategy.experimental_local_results(total)}
        assert len(copies) == 1


def test_an_interrupted_trace_can_be_started_over(interrupted):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    for delay in np.geomspace(1e-3, 5e-2, 12).tolist():
        with strategy.scope():
            total = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM)

        def replica_fn(x, total=total):
            for _ in range(20):
                total.assign_add(x * 1.0)

        step = rx.function(replica_fn)
        interrupted(lambda step=step: strategy.run(step, args=(1.0,)), delay)
        assert not rx.has_strategy()
        before = float(total)
        assert before in (0.0, 40.0)
        strategy.run(step, args=(1.0,))
        assert float(total) == before + 40.0
