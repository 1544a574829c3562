"""Steps that several tests run."""

import jax.numpy as jnp

import replicax as rx


def counting_step(strategy):
    """A variable, and a step that adds to it what it is given and returns twice that."""
    with strategy.scope():
        total = rx.Variable(jnp.zeros(2), aggregation=rx.VariableAggregation.SUM)

    @rx.function
    def step(x):
        total.assign_add(x)
        return x * 2

    return total, step
