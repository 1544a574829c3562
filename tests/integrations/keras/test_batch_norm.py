"""`BatchNormalization` on many replicas: each normalises its own part, and averages are read."""

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras import layers

from tests.integrations.keras.problem import FIT, IMAGES, ROWS, X, Y, mirrored
from tests.tiers import full_only


def normalised_mlp() -> keras.Model:
    norm = layers.BatchNormalization(momentum=0.5)
    return keras.Sequential([keras.Input((6,)), layers.Dense(4), norm, layers.Dense(2)])


def reference(num_replicas: int) -> tuple[list[np.ndarray], list[float]]:
    """The documented rule in a few lines: weights and losses after three epochs.

    Each replica normalises by its own rows and moves its own averages; the losses of the replicas
    are weighed by their rows; what is read of the averages is the mean over the replicas.
    """
    keras.utils.set_random_seed(1)
    weights = [np.asarray(weight) for weight in normalised_mlp().get_weights()]
    trained, statistics = weights[:4] + weights[6:], weights[4:6]
    averages = [list(statistics) for _ in range(num_replicas)]

    def loss_of(trained: Any, parts: Any) -> Any:
        first, first_bias, gamma, beta, second, second_bias = trained
        total, moments = 0.0, []
        for x, y in parts:
            hidden = x @ first + first_bias
            mean, variance = hidden.mean(axis=0), hidden.var(axis=0)
            hidden = (hidden - mean) / jnp.sqrt(variance + 1e-3) * gamma + beta
            total += jnp.sum(jnp.mean((hidden @ second + second_bias - y) ** 2, axis=1))
            moments.append((mean, variance))
        return total / sum(len(x) for x, _ in parts), moments

    losses = []
    for _ in range(FIT["epochs"]):
        total = 0.0
        for start in range(0, ROWS, FIT["batch_size"]):
            x, y = (array[start : start + FIT["batch_size"]] for array in (X, Y))
            size = -(-len(x) // num_replicas)
            parts = [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]
            gradient = jax.value_and_grad(loss_of, has_aux=True)
            (loss, moments), grads = gradient(trained, parts)
            trained = [w - 0.1 * g for w, g in zip(trained, grads, strict=True)]
            total += float(loss) * len(x)
            for own, found in zip(averages, moments, strict=False):  # the last may have no rows
                own[:] = [0.5 * a + 0.5 * b for a, b in zip(own, found, strict=True)]
        losses.append(total / ROWS)
    means = [np.mean(values, axis=0) for values in zip(*averages, strict=True)]
    return [np.asarray(w) for w in (*trained[:4], *means, *trained[4:])], losses


@pytest.mark.parametrize("num_replicas", [3, full_only(1), full_only(2), full_only(8)])
def test_batch_norm_follows_the_documented_rule(num_replicas: int) -> None:
    expected, losses = reference(num_replicas)
    keras.utils.set_random_seed(1)
    with mirrored(num_replicas).scope():
        model = normalised_mlp()
        model.compile(keras.optimizers.SGD(0.1), "mse")
    history = model.fit(X, Y, **FIT).history
    for own, weight in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(own, weight, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-5)


def batch_norm_model() -> keras.Model:
    return keras.Sequential(
        [keras.Input((6, 6, 2)), layers.BatchNormalization(momentum=0.5), layers.Flatten()]
    )


def test_batch_norm_averages_the_statistics_of_the_replicas() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        model = batch_norm_model()
        model.compile("sgd", "mse")
    model.train_on_batch(IMAGES[:8], np.zeros((8, 72), "float32"))
    halves = [IMAGES[:4], IMAGES[4:8]]
    mean = np.mean([half.mean(axis=(0, 1, 2)) for half in halves], axis=0)
    variance = np.mean([half.var(axis=(0, 1, 2)) for half in halves], axis=0)
    norm = model.layers[0]
    np.testing.assert_allclose(norm.moving_mean.numpy(), 0.5 * mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(norm.moving_variance.numpy(), 0.5 + 0.5 * variance, rtol=1e-5)


def test_evaluation_uses_the_averaged_statistics_on_every_replica() -> None:
    with mirrored(3).scope():
        model = batch_norm_model()
        model.compile("sgd", "mse")
    model.fit(IMAGES, np.zeros((22, 72), "float32"), **FIT)
    predicted = model.predict(IMAGES, batch_size=8, verbose=0)
    plain = batch_norm_model()
    plain.set_weights(model.get_weights())
    np.testing.assert_allclose(predicted, plain.predict(IMAGES, verbose=0), rtol=1e-5, atol=1e-5)


def test_a_batch_without_examples_on_a_replica_leaves_its_statistics_alone() -> None:
    with mirrored(2).scope():
        model = batch_norm_model()
        model.compile("sgd", "mse")
    model.train_on_batch(IMAGES[:1], np.zeros((1, 72), "float32"))
    moving_mean = model.layers[0].moving_mean.replicax_variable
    own, other = (np.asarray(copy) for copy in moving_mean.values)
    assert np.any(own)
    np.testing.assert_array_equal(other, 0.0)
