"""The models that every number of replicas must train to the weights of one device.

Each has its data and its losses. Dropout is off and nothing normalises over the batch, so that one
device and many compute the same; ``test_batch_norm.py`` has a reference for what differs.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers

import replicax as rx
from tests.integrations.keras.problem import (
    CLASSES,
    IMAGES,
    ROWS,
    SEQUENCES,
    TOKENS,
    X,
    Y,
    mlp,
    normal,
)


@dataclasses.dataclass(frozen=True)
class Task:
    """A model and what it learns.

    Attributes:
        model: Makes the model.
        x: The inputs.
        y: The targets.
        loss: As ``compile`` takes it.
        metrics: As ``compile`` takes it.
    """

    model: Callable[[], keras.Model]
    x: Any
    y: Any
    loss: Any = "mse"
    metrics: Any = ("mae",)


def convnet() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(3, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(4),
        ]
    )


def lstm() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            layers.Embedding(7, 4, mask_zero=True),
            layers.LSTM(4, return_sequences=True),
            layers.Dense(2),
        ]
    )


def transformer() -> keras.Model:
    # No biases: the loss does not depend on that of the keys, and Adam makes steps of full size of
    # the rounding errors that are its gradient.
    attention = layers.MultiHeadAttention(2, 2, use_bias=False)
    inputs = keras.Input((5, 3))
    hidden = layers.Dense(4)(inputs)
    hidden = layers.LayerNormalization()(hidden + attention(hidden, hidden))
    hidden = hidden + layers.Dense(4)(layers.Dense(6, activation="gelu")(hidden))
    return keras.Model(inputs, layers.Dense(2)(layers.GlobalAveragePooling1D()(hidden)))


def several_inputs_and_outputs() -> keras.Model:
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    hidden = layers.concatenate([layers.Dense(4)(a), layers.Dense(4)(b)])
    p = layers.Dense(2, name="p")(hidden)
    q = layers.Dense(4, activation="softmax", name="q")(hidden)
    return keras.Model({"a": a, "b": b}, {"p": p, "q": q})


CROSS_ENTROPY = "sparse_categorical_crossentropy"
TASKS = {
    "mlp": Task(mlp, X, Y),
    "convnet": Task(
        convnet,
        IMAGES,
        CLASSES,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        ("accuracy",),
    ),
    "lstm": Task(lstm, TOKENS, normal(ROWS, 5, 2)),
    "transformer": Task(transformer, SEQUENCES, Y),
    "several outputs": Task(
        several_inputs_and_outputs,
        {"a": X, "b": X * 2},
        {"p": Y, "q": CLASSES},
        {"p": "mse", "q": CROSS_ENTROPY},
        {"p": ["mae"], "q": ["accuracy"]},
    ),
}
OPTIMIZERS: dict[str, Callable[[], keras.Optimizer]] = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
}
EPOCHS = 3


def trained(
    task: str, optimizer: str, strategy: rx.Strategy | None = None
) -> tuple[list[np.ndarray], dict[str, list[float]]]:
    """Weights and figures after three epochs: one fitted in the scope, two after it.

    The batches are 8, 8 and 6 examples. Without a strategy plain Keras trains on one device.
    """
    chosen = TASKS[task]
    options: dict[str, Any] = {"batch_size": 8, "verbose": 0, "shuffle": False}
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)

    def made() -> tuple[keras.Model, list[Any]]:
        metrics = chosen.metrics if isinstance(chosen.metrics, dict) else list(chosen.metrics)
        model = chosen.model()
        model.compile(OPTIMIZERS[optimizer](), chosen.loss, metrics=metrics)
        return model, [model.fit(chosen.x, chosen.y, epochs=1, **options)]

    if strategy is None:
        model, histories = made()
    else:
        with strategy.scope():
            model, histories = made()
    later = {"initial_epoch": 1, "epochs": EPOCHS, **options}
    histories.append(model.fit(chosen.x, chosen.y, **later))
    names = histories[0].history
    figures = {name: [v for h in histories for v in h.history[name]] for name in names}
    return [np.asarray(weight) for weight in model.get_weights()], figures


def require_near(
    found: tuple[Any, dict[str, list[float]]],
    expected: tuple[Any, dict[str, list[float]]],
    tolerance: float = 1e-5,
) -> None:
    """Fails unless weights are within ``tolerance * max(1, |w|)``, and figures within 1e-5."""
    assert len(found[0]) == len(expected[0])
    for own, weight in zip(found[0], expected[0], strict=True):
        own, weight = np.asarray(own), np.asarray(weight)
        allowed = tolerance * np.maximum(1.0, np.abs(weight))
        assert np.all(np.abs(own - weight) <= allowed), np.max(np.abs(own - weight) / allowed)
    assert found[1].keys() == expected[1].keys()
    for name, values in expected[1].items():
        np.testing.assert_allclose(found[1][name], values, rtol=1e-5, atol=1e-5, err_msg=name)
