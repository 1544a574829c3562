"""Training steps lower for GPUs and TPUs, which the tests do not have.

Lowering shows that every operation has a rule for the platform. That a step runs there, and gives
the same numbers, is not shown.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from tests.contracts.strategies import central, mirrored, sharded

STRATEGIES = {
    "mirrored": (lambda: mirrored(2), 8),
    "uneven": (lambda: mirrored(3), 8),
    "logical": (lambda: mirrored(4, logical_devices=2), 8),
    "sharded": (lambda: sharded(2), 8),
    "central": (lambda: central(2), 8),
}


def training_step(strategy):
    """Dropout, Adam with clipping, and a metric."""
    with strategy.scope():
        params = rx.variables_from({"w": jnp.ones((3, 4)), "b": jnp.zeros(4)})
        optimizer = rx.Optimizer(optax.adam(0.01), clip_global_norm=1.0)
        metric = rx.metrics.Mean()
        keys = rx.random.Generator(0)

    def step(x):
        kept = jax.random.bernoulli(keys.next_replica_key(), 0.9, x.shape)

        def loss():
            y = jnp.tanh((x * kept) @ params["w"] + params["b"])
            return rx.compute_average_loss(jnp.sum(y**2, axis=1))

        value, gradients = rx.value_and_grad(loss, params)
        optimizer.apply_gradients([(gradients, params)])
        metric.update_state(value)
        return value

    return rx.function(step)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_training_step_lowers_without_custom_calls(name, platform):
    make, size = STRATEGIES[name]
    strategy = make()
    batch = strategy.distribute_batch(np.ones((size, 3), np.float32))
    step = training_step(strategy)
    strategy.run(step, args=(batch,))  # creates the slots of the optimizer
    program, arrays = step._site.program_for(step.python_function, (batch,), {}, strategy=strategy)
    text = program.launcher.lowered(arrays, (platform,)).as_text()
    assert "stablehlo" in text
    calls = set(re.findall(r"custom_call @(\w+)", text))
    assert calls <= {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"}  # marks for XLA
