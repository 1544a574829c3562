"""`Function.lower` and `lower_run`: the program, as JAX shows it."""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx


@pytest.fixture
def strategy():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


def test_lower_shows_the_program_without_running_it():
    v = rx.Variable(1.0)

    @rx.function
    def step(x):
        v.assign_add(x)
        return jnp.sin(v.value)

    lowered = step.lower(jnp.ones(()))
    assert "stablehlo.sine" in lowered.as_text()
    assert lowered.compile() is not None
    assert float(v) == 1.0
    assert float(step(1.0)) == pytest.approx(np.sin(2.0))


def test_lower_run_shows_the_program_of_all_replicas(strategy):
    with strategy.scope():
        v = rx.Variable(1.0, aggregation=rx.VariableAggregation.SUM)

    @rx.function
    def step(x):
        v.assign_add(x.sum())

    batch = strategy.distribute_batch(np.ones(4, np.float32))
    text = step.lower_run(strategy, batch).compile().as_text()
    assert "all-reduce" in text
    assert float(v) == 1.0
