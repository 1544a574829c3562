"""The same training with Keras 3 on JAX: `fit`, and on several devices under `DataParallel`."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np

from benchmarks import problems
from benchmarks.problems import Problem
from benchmarks.timing import Step
from benchmarks.worker import Assignment


def compiled_model(problem: Problem) -> Any:
    """The model with the initial values of the problem, ready to be fitted."""
    model = keras.Sequential(_convnet() if problem.model == "convnet" else _mlp())
    model.set_weights(problem.params)
    if problem.optimizer == "adam":
        b1, b2, eps = problems.ADAM.values()
        optimizer: Any = keras.optimizers.Adam(problem.rate, b1, b2, eps)
    else:
        optimizer = keras.optimizers.SGD(problem.rate, problems.MOMENTUM)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile="auto")
    return model


def _mlp() -> list[Any]:
    return [
        keras.layers.Input((problems.SIZES[0],)),
        *(keras.layers.Dense(size, "relu") for size in problems.SIZES[1:-1]),
        keras.layers.Dense(problems.SIZES[-1]),
    ]


def _convnet() -> list[Any]:
    layers: list[Any] = [keras.layers.Input(problems.PICTURES[1:])]
    for channels in problems.CHANNELS:
        layers += [keras.layers.Conv2D(channels, 3, activation="relu")]
        layers += [keras.layers.MaxPooling2D(2)]
    return [*layers, keras.layers.Flatten(), keras.layers.Dense(10)]


def fitting(model: Any, problem: Problem) -> Step:
    """Calls `fit`, for one step or for many: one batch after the other from memory."""
    x, y = problem.batch
    size = problem.num_examples

    def fit(steps: int) -> float:
        tiled = np.tile(x, (steps, *[1] * (x.ndim - 1))), np.tile(y, steps)
        history = model.fit(*tiled, batch_size=size, epochs=1, verbose=0, shuffle=False)
        return history.history["loss"][-1]

    return Step(lambda: fit(1), float, many=fit)


def train(assignment: Assignment, variant: str) -> Step:
    """W2 and W11; one device is that of plain Keras."""
    problem = problems.problem_of(assignment.workload, variant)
    devices = [f"cpu:{i}" for i in range(assignment.replicas)]
    assert len(devices) <= jax.device_count()
    if len(devices) > 1:
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    return fitting(compiled_model(problem), problem)


STEPS = {"W2": train, "W11": train}
