"""A model that is saved under a strategy loads without one, and the reverse."""

import pathlib
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import replicax as rx
from replicax.integrations.keras.variables import StrategyVariable
from tests.integrations.keras.problem import FIT, X, Y, mirrored


def model_with_everything() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(5),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(2),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    return model


@pytest.fixture
def strategy() -> rx.Strategy:
    return mirrored(2)


@pytest.fixture
def model(strategy: rx.Strategy) -> keras.Model:
    with strategy.scope():
        made = model_with_everything()
    made.fit(X, Y, **FIT)
    return made


def figures(model: keras.Model) -> Any:
    return model.evaluate(X, Y, verbose=0)


def test_a_saved_model_loads_without_a_strategy_and_under_one(
    model: keras.Model, strategy: rx.Strategy, tmp_path: pathlib.Path
) -> None:
    expected = figures(model)
    path = tmp_path / "model.keras"
    model.save(path)
    plain = keras.models.load_model(path)
    assert type(plain.weights[0]) is keras.Variable
    np.testing.assert_allclose(figures(plain), expected, rtol=1e-6)
    with strategy.scope():
        distributed = keras.models.load_model(path)
    np.testing.assert_allclose(figures(distributed), expected, rtol=1e-6)
    assert int(distributed.optimizer.iterations) == 9
    distributed.fit(X, Y, **FIT)
    assert int(distributed.optimizer.iterations) == 18


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")
def test_weights_go_from_a_strategy_to_plain_keras_and_back(
    model: keras.Model, tmp_path: pathlib.Path
) -> None:
    expected = figures(model)
    model.save_weights(tmp_path / "a.weights.h5")
    plain = model_with_everything()
    plain.load_weights(tmp_path / "a.weights.h5")
    np.testing.assert_allclose(figures(plain), expected, rtol=1e-6)
    plain.save_weights(tmp_path / "b.weights.h5")
    model.fit(X, Y, **FIT)
    model.load_weights(tmp_path / "b.weights.h5")
    np.testing.assert_allclose(figures(model), expected, rtol=1e-6)


def test_a_checkpoint_restores_model_and_optimizer_into_a_model_made_again(
    model: keras.Model, strategy: rx.Strategy, tmp_path: pathlib.Path
) -> None:
    path = rx.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path / "ckpt")
    model.fit(X, Y, **FIT)
    with strategy.scope():
        again = model_with_everything()
        again.optimizer.build(again.trainable_variables)
    rx.Checkpoint(model=again, optimizer=again.optimizer).restore(path)
    assert int(again.optimizer.iterations) == 9
    again.fit(X, Y, **FIT)
    for own, expected in zip(again.get_weights()[:2], model.get_weights()[:2], strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)


def test_a_model_made_outside_is_taken_over_with_its_weights(strategy: rx.Strategy) -> None:
    model = model_with_everything()
    model.layers[0].trainable = False
    model.fit(X, Y, **FIT)
    weights, slots = model.get_weights(), [v.numpy() for v in model.optimizer.variables]
    assert rx.integrations.keras.distribute(model, strategy) is model
    for own, expected in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-6)
    for own, expected in zip(model.optimizer.variables, slots, strict=True):
        np.testing.assert_array_equal(own.numpy(), expected)
    model.fit(X, Y, **FIT)
    variables = [*model.variables, *model.optimizer.variables]
    assert all(isinstance(variable, StrategyVariable) for variable in variables)


def test_callbacks_that_save_find_the_state_of_the_step(
    strategy: rx.Strategy, tmp_path: pathlib.Path
) -> None:
    with strategy.scope():
        model = model_with_everything()
    callbacks = [
        keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras", monitor="loss"),
        keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False),
        keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
    ]
    model.fit(X, Y, callbacks=callbacks, **FIT)
    last = keras.models.load_model(tmp_path / "3.keras")
    for own, expected in zip(last.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-6)
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 4
