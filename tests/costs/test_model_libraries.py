"""Steps of Flax NNX and Keras are functions like any other."""

import keras
import numpy as np
import optax
import pytest
from flax import nnx

import replicax as rx
from tests.contracts.strategies import mirrored

NUM_FEATURES, NUM_OUTPUTS = 20, 10
WEIGHTS = 4 * (NUM_FEATURES + 1) * NUM_OUTPUTS


def nnx_step(strategy):
    with strategy.scope():
        model = nnx.Linear(NUM_FEATURES, NUM_OUTPUTS, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    @rx.function
    def step(x, y):
        loss, gradients = nnx.value_and_grad(lambda model: ((model(x) - y) ** 2).mean())(model)
        optimizer.update(model, gradients)
        return loss

    return step, {"kernel", "bias"}


def keras_step(strategy):
    with strategy.scope():
        layers = [keras.layers.Input((NUM_FEATURES,)), keras.layers.Dense(NUM_OUTPUTS, name="d")]
        model = keras.Sequential(layers, name="m")
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)

    @rx.function
    def step(x, y):
        loss, gradients = rx.value_and_grad(
            lambda: keras.ops.mean((model(x) - y) ** 2), model.trainable_variables
        )
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return step, {"m/d/kernel", "m/d/bias"}


@pytest.mark.slow
@pytest.mark.parametrize("make", [nnx_step, keras_step])
def test_a_step_of_a_model_library_is_explained(make):
    strategy = mirrored(2)
    step, names = make(strategy)
    rows = np.ones((8, NUM_FEATURES), np.float32), np.ones((8, NUM_OUTPUTS), np.float32)
    batch = strategy.distribute_batch(rows)
    explanation = step.explain(*batch, strategy=strategy)
    found = explanation.program
    assert sum(one.num_bytes for one in found.collectives) == WEIGHTS
    assert {name for one in found.collectives for name in one.variables} == names
    assert found.memory.slots == 2 * WEIGHTS
    assert {one.name for one in found.state if one.is_trainable and one.slot_of is None} == names
    assert "optimizer state" in {hint.topic for hint in explanation.hints}
    traces = step.trace_count
    strategy.run(step, args=batch)
    assert step.trace_count == traces
