"""Every misuse of Keras under a strategy is an error that says what to write instead."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import replicax as rx
from replicax.integrations.keras.version import require
from tests.integrations.keras.problem import FIT, X, Y, mirrored, mlp
from tests.integrations.keras.styles import Subclassed


def _compiled(strategy: rx.Strategy) -> keras.Model:
    with strategy.scope():
        model = mlp()
        model.compile("sgd", "mse")
    return model


def fit_of_a_model_made_outside() -> None:
    model = mlp()
    model.compile("sgd", "mse")
    with mirrored(2).scope():
        model.fit(X, Y, **FIT)


def compile_of_a_model_made_outside() -> None:
    model = mlp()
    with mirrored(2).scope():
        model.compile("sgd", "mse")


def layers_made_outside() -> None:
    base = mlp()
    with mirrored(2).scope():
        model = keras.Model(base.inputs, layers.Dense(2)(base.outputs[0]))
        model.compile("sgd", "mse")


def fit_in_the_scope_of_another_strategy() -> None:
    model = _compiled(mirrored(2))
    with mirrored(3).scope():
        model.fit(X, Y, **FIT)


def optimizer_of_another_strategy() -> None:
    with mirrored(3).scope():
        optimizer = keras.optimizers.Adam()
    with mirrored(2).scope():
        model = mlp()
        model.compile(optimizer, "mse")


def distribute_to_another_strategy() -> None:
    rx.integrations.keras.distribute(_compiled(mirrored(2)), mirrored(3))


def fit_inside_run() -> None:
    strategy = mirrored(2)
    model = _compiled(strategy)
    strategy.run(lambda: model.fit(X, Y, **FIT))


def distribution_of_keras() -> None:
    devices = ["cpu:0", "cpu:1"]
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    try:
        _compiled(mirrored(2))
    finally:
        keras.distribution.set_distribution(None)


def stateful_rnn() -> None:
    with mirrored(2).scope():
        inputs = keras.Input(batch_shape=(8, 5, 3))
        model = keras.Sequential([inputs, layers.LSTM(2, stateful=True)])
        model.compile("sgd", "mse")


def targets_beside_our_dataset() -> None:
    strategy = mirrored(2)
    model = _compiled(strategy)
    pipeline = rx.data.Dataset.from_tensor_slices(X).batch(8)
    model.fit(strategy.experimental_distribute_dataset(pipeline), Y, verbose=0)


def optimizers_of_which_one_scales_the_loss() -> None:
    with mirrored(2).scope():
        model = two_optimizers()
        model.compile("sgd", "mse")
    model.fit(X, Y, **FIT)


def two_optimizers() -> keras.Model:
    class Two(Subclassed):
        def train_step(self, state: Any, data: Any) -> Any:
            weights, others, slots, metrics = state
            self.optimizer.scale_loss(self.compute_loss(y=data[1], y_pred=data[1] * 2))
            held = [variable.value for variable in self.other.variables]
            self.other.stateless_apply(held, weights, weights)
            return {}, (weights, others, slots, metrics)

    model = Two()
    model(X[:1])
    model.other = keras.optimizers.SGD(name="other")
    model.other.build(model.trainable_variables)
    return model


def weight_assigned_in_a_replica() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        weight = keras.Variable(np.zeros(2, "float32"), name="weight")
    strategy.run(rx.function(lambda: weight.assign(np.ones(2, "float32"))))


MISUSES: list[tuple[Callable[[], None], type[Exception], str]] = [
    (fit_of_a_model_made_outside, RuntimeError, r"whose first layer is 'input_layer.*distribute\("),
    (compile_of_a_model_made_outside, RuntimeError, "the model was created outside of it"),
    (layers_made_outside, ValueError, r"of layer 'dense.*was created outside of its scope"),
    (fit_in_the_scope_of_another_strategy, RuntimeError, "2 replicas.*in the scope of.*3 replicas"),
    (optimizer_of_another_strategy, ValueError, "'adam.*/iteration' belongs to.*3 replicas"),
    (distribute_to_another_strategy, ValueError, r"clone_model\(model\)"),
    (fit_inside_run, RuntimeError, "It runs all replicas itself: call it outside of run"),
    (distribution_of_keras, RuntimeError, r"set_distribution\(None\)"),
    (stateful_rnn, ValueError, "layer 'lstm.*' is stateful.*Use stateful=False"),
    (targets_beside_our_dataset, ValueError, "y cannot be given beside a DistributedDataset"),
    (
        optimizers_of_which_one_scales_the_loss,
        RuntimeError,
        "'other' applies gradients in a step where only '(?i:sgd).*' called scale_loss",
    ),
    (weight_assigned_in_a_replica, ValueError, "assign of variable 'weight' inside run"),
]


@pytest.mark.parametrize(
    ("misuse", "kind", "message"), MISUSES, ids=[misuse.__name__ for misuse, *_ in MISUSES]
)
def test_a_misuse_says_what_to_write(
    misuse: Callable[[], None], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        misuse()


@pytest.mark.parametrize("version", ["2.15.0", "3.11.3"])
def test_an_older_keras_is_refused(version: str) -> None:
    with pytest.raises(ImportError, match=f"Keras {version} is too old.*needs Keras 3.12 or newer"):
        require(version)


@pytest.mark.parametrize("version", ["3.12.0", "3.15.1", "4.0.0.dev1"])
def test_a_newer_keras_is_accepted(version: str) -> None:
    require(version)
