"""What a user writes, and what a type checker must find in it: nothing wrong."""

from typing import assert_type

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    w = rx.Variable(jnp.zeros(3), name="w", aggregation=rx.VariableAggregation.MEAN)
    count = rx.Variable(0, trainable=False, dtype="int32")
    table = rx.Variable([[1.0], [2.0]])
    made = rx.Variable(lambda: np.ones(2), trainable=True)
assert_type(w, rx.Variable)
assert_type(w.value, jax.Array)
assert_type(w.assign_add(jnp.ones(3)), rx.Variable)


@rx.function
def step(x: jax.Array, rate: float = 0.1) -> jax.Array:
    w.assign_sub(rate * x)
    return w.value


assert_type(step(jnp.ones(3)), jax.Array)
assert_type(step(jnp.ones(3), rate=0.5), jax.Array)
assert_type(step.trace_count, int)


@rx.function(donate=False)
def kept(x: jax.Array) -> tuple[jax.Array, int]:
    return x, 1


assert_type(kept(jnp.ones(3)), tuple[jax.Array, int])


class Trainer:
    @rx.function
    def step(self, x: jax.Array, times: int) -> jax.Array:
        return x * times


assert_type(Trainer().step(jnp.ones(3), 2), jax.Array)


def log(x: jax.Array) -> None:
    print(x)


assert_type(strategy.run(log, args=(jnp.ones(3),)), None)
losses = strategy.run(step, args=(jnp.ones(3),))
strategy.reduce("SUM", losses)
strategy.reduce(rx.ReduceOp.MEAN, losses, axis=0)
strategy.reduce(rx.VariableAggregation.MEAN, losses, axis=(0, 1))
context = rx.get_replica_context()
if context is not None:
    context.all_reduce("mean", {"loss": losses})
loss, gradient = rx.value_and_grad(lambda: w.value.sum(), w)
