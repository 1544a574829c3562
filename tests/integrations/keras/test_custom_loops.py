"""Keras models, losses, optimizers and metrics in `strategy.run`, eager and compiled."""

from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras import layers, ops

import replicax as rx
from tests.integrations.keras.problem import SEQUENCES, X, Y, mirrored, mlp, normal
from tests.tiers import full_only

STEPS = 3


def on_one_device(batch: tuple[Any, Any]) -> tuple[list[np.ndarray], list[float], float]:
    """What a loop of plain Keras gives: weights, losses and the metric."""
    x, y = batch
    keras.utils.set_random_seed(1)
    model, optimizer = mlp(), keras.optimizers.Adam(0.01)
    loss_fn, metric = keras.losses.MeanSquaredError(), keras.metrics.MeanAbsoluteError()
    optimizer.build(model.trainable_variables)
    losses = []

    def loss_of(weights: Any) -> Any:
        predicted, _ = model.stateless_call(weights, [], x)
        return loss_fn(y, predicted), predicted

    for _ in range(STEPS):
        weights = [v.value for v in model.trainable_variables]
        (loss, predicted), grads = jax.value_and_grad(loss_of, has_aux=True)(weights)
        optimizer.apply(grads)
        metric.update_state(y, predicted)
        losses.append(float(loss))
    return model.get_weights(), losses, float(metric.result())


@pytest.mark.parametrize("is_compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize("is_lazy", [False, True], ids=["built", "built in the run"])
@pytest.mark.parametrize("num_replicas", [2, full_only(1), full_only(3), full_only(8)])
def test_a_loop_gives_what_one_device_gives(
    num_replicas: int, is_lazy: bool, is_compiled: bool
) -> None:
    batch = X[:7], Y[:7]
    weights, expected, error = on_one_device(batch)
    strategy = mirrored(num_replicas)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        parts = [layers.Dense(6, activation="tanh"), layers.Dense(2)]
        model = keras.Sequential(parts if is_lazy else [keras.Input((6,)), *parts])
        optimizer = keras.optimizers.Adam(0.01)
        loss_fn = keras.losses.MeanSquaredError()
        metric = keras.metrics.MeanAbsoluteError()

    def step(batch: Any) -> Any:
        x, y = batch
        if not model.built:
            model(x)

        def loss_of() -> Any:
            predicted = model(x, training=True)
            return loss_fn(y, predicted), predicted

        variables = model.trainable_variables
        (loss, predicted), grads = rx.value_and_grad(loss_of, variables, has_aux=True)
        optimizer.apply_gradients(zip(grads, variables, strict=True))
        metric.update_state(y, predicted)
        return loss

    run = rx.function(step) if is_compiled else step
    losses = []
    for _ in range(STEPS):
        parts = strategy.run(run, args=(strategy.distribute_batch(batch),))
        losses.append(float(strategy.reduce("SUM", parts, axis=None)))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(float(metric.result()), error, rtol=1e-5)
    for own, weight in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(own, weight, rtol=1e-5, atol=1e-6)
    assert int(optimizer.iterations) == STEPS


LOSSES = {
    "mean": lambda: keras.losses.MeanSquaredError(),
    "sum": lambda: keras.losses.MeanSquaredError(reduction="sum"),
    "weights": lambda: keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
}


@pytest.mark.parametrize("is_masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("name", LOSSES)
def test_the_parts_of_a_loss_add_up(name: str, is_masked: bool) -> None:
    loss_fn = LOSSES[name]()
    targets, weights = normal(22, 5, 3, seed=8), np.linspace(0.1, 2.0, 22, dtype="float32")
    mask = np.random.default_rng(9).random((22, 5)) < 0.6

    def loss_of(predicted: Any, target: Any, weight: Any, mask: Any) -> Any:
        predicted = ops.convert_to_tensor(predicted) * 1
        if is_masked:
            keras.src.backend.set_keras_mask(predicted, mask)
        return loss_fn(target, predicted, sample_weight=weight[:, None])

    batch = SEQUENCES, targets, weights, mask
    strategy = mirrored(3)
    parts = strategy.run(rx.function(loss_of), args=strategy.distribute_batch(batch))
    total = strategy.reduce("SUM", parts, axis=None)
    np.testing.assert_allclose(float(total), float(loss_of(*batch)), rtol=1e-5)


def test_an_optimizer_updates_some_of_its_variables() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        model = mlp()
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build(model.trainable_variables)
    before = model.get_weights()
    last = model.layers[-1].bias

    @rx.function
    def step(x: Any) -> None:
        optimizer.apply([x.sum(axis=0)], [last])

    strategy.run(step, args=(strategy.distribute_batch(np.ones((3, 2), "float32")),))
    np.testing.assert_allclose(last.numpy(), before[-1] - 3.0)
    for own, old in zip(model.get_weights()[:-1], before[:-1], strict=True):
        np.testing.assert_array_equal(own, old)


def test_what_a_replica_assigns_to_a_statistic_is_its_own() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        seen = keras.Variable(0.0, trainable=False, dtype="float32")
        count = keras.Variable(0, trainable=False, dtype="int32")

    @rx.function
    def step(x: Any) -> None:
        seen.assign(x.mean())
        count.assign_add(1)

    strategy.run(step, args=(strategy.distribute_batch(np.array([1.0, 1.0, 5.0, 5.0], "f4")),))
    assert float(seen) == 3.0
    assert int(count) == 1
