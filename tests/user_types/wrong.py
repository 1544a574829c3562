"""Mistakes that a type checker must find, on these lines and no others."""

import jax
import jax.numpy as jnp

import replicax as rx

strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
v = rx.Variable(1.0, agregation=rx.VariableAggregation.SUM)  # wrong
v = rx.Variable(1.0, name=3)  # wrong
v = rx.Variable(1.0, synchronization="ON_READ")  # wrong
v = rx.Variable(1.0, True, "name")  # wrong
v = rx.Variable(1.0)


@rx.function
def step(x: jax.Array, rate: float) -> jax.Array:
    return x * rate


step(jnp.ones(3))  # wrong
step(jnp.ones(3), "fast")  # wrong
step(jnp.ones(3), rte=0.1)  # wrong
length: str = step(jnp.ones(3), 0.1)  # wrong
step.traces  # wrong
strategy.reduce("MAX", v)  # wrong
strategy.reduce("SUM", v, axis="0")  # wrong
strategy.run(step, arguments=(jnp.ones(3), 0.1))  # wrong
strategy.run(3)  # wrong


class Trainer:
    @rx.function
    def step(self, x: jax.Array) -> jax.Array:
        return x


Trainer().step()  # wrong
Trainer().step(jnp.ones(3), 2)  # wrong
