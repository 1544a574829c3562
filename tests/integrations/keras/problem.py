"""Data and models for the tests of the integration with Keras, and plain Keras to compare with.

The batches are 8, 8 and 6 of 22 examples: none divides by 3, and on 8 replicas some have none.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers

import replicax as rx

ROWS = 22
FIT = {"batch_size": 8, "epochs": 3, "verbose": 0, "shuffle": False}


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


X, Y = normal(ROWS, 6), normal(ROWS, 2, seed=1)
CLASSES = np.random.default_rng(2).integers(0, 3, size=ROWS)
WEIGHTS = np.random.default_rng(3).uniform(0.5, 2.0, size=ROWS).astype("float32")
IMAGES = normal(ROWS, 6, 6, 2, seed=4)
TOKENS = np.random.default_rng(5).integers(0, 7, size=(ROWS, 5))
SEQUENCES = normal(ROWS, 5, 3, seed=6)


def mlp(**options: Any) -> keras.Model:
    first = layers.Dense(6, activation="tanh", **options)
    return keras.Sequential([keras.Input((6,)), first, layers.Dense(2)])


def mirrored(num_replicas: int) -> rx.Strategy:
    return rx.MirroredStrategy([f"CPU:{index}" for index in range(num_replicas)])


def trained(
    program: Callable[[], tuple[keras.Model, dict[str, Any]]], strategy: rx.Strategy | None
) -> tuple[list[np.ndarray], dict[str, Any]]:
    """The weights and the history of a program, under a strategy or in plain Keras."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    if strategy is None:
        model, history = program()
    else:
        with strategy.scope():
            model, history = program()
    return [np.asarray(weight) for weight in model.get_weights()], history


def require_equal(
    program: Callable[[], tuple[keras.Model, dict[str, Any]]],
    strategy: rx.Strategy,
    tolerance: float = 1e-5,
) -> None:
    """Fails unless a program gives what it gives in plain Keras, on one device."""
    weights, history = trained(program, None)
    own_weights, own_history = trained(program, strategy)
    for own, expected in zip(own_weights, weights, strict=True):
        np.testing.assert_allclose(own, expected, rtol=tolerance, atol=tolerance)
    assert own_history.keys() == history.keys()
    for name, values in history.items():
        np.testing.assert_allclose(
            own_history[name], values, rtol=tolerance, atol=tolerance, err_msg=name
        )
