"""Keras under a strategy with what needs TensorFlow or torch: data, TensorBoard, export, text."""

import pathlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from keras import layers

from tests.integrations.keras.problem import WEIGHTS, X, Y, mirrored, mlp, require_equal


def fitted(data: Any, **options: Any) -> Any:
    model = mlp()
    model.compile("adam", "mse", metrics=["mae"], weighted_metrics=["mse"])
    return model, model.fit(data, epochs=2, verbose=0, shuffle=False, **options).history


def of_tensorflow(*arrays: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays).batch(8)


def of_torch(*arrays: Any) -> torch.utils.data.DataLoader:
    tensors = [torch.from_numpy(array) for array in arrays]
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*tensors), batch_size=8)


SOURCES = {"tf.data": of_tensorflow, "torch": of_torch}


@pytest.mark.parametrize("num_replicas", [2, 3])
@pytest.mark.parametrize("name", SOURCES)
def test_a_data_set_of_another_library_is_divided(name: str, num_replicas: int) -> None:
    make = SOURCES[name]
    require_equal(lambda: fitted(make(X, Y)), mirrored(num_replicas))


@pytest.mark.parametrize("name", SOURCES)
def test_it_may_have_weights_and_be_used_for_validation(name: str) -> None:
    make = SOURCES[name]
    require_equal(
        lambda: fitted(make(X, Y, WEIGHTS), validation_data=make(X[:9], Y[:9], WEIGHTS[:9])),
        mirrored(2),
    )


@pytest.mark.parametrize("name", SOURCES)
def test_evaluate_and_predict_read_it_too(name: str) -> None:
    make = SOURCES[name]

    def program() -> Any:
        model = mlp()
        model.compile("sgd", "mse", metrics=["mae"])
        figures = model.evaluate(make(X, Y), verbose=0, return_dict=True)
        return model, figures | {"predicted": model.predict(make(X, Y), verbose=0)}

    require_equal(program, mirrored(2))


def test_a_data_set_without_an_end_is_read_for_the_steps_that_were_asked_for() -> None:
    def program() -> Any:
        return fitted(of_tensorflow(X, Y).repeat(), steps_per_epoch=4)

    require_equal(program, mirrored(2))


def test_texts_are_prepared_by_a_layer_of_keras() -> None:
    texts = np.array(["a b c", "b c", "c a a", "d", "a d b", "b", "c d"])
    targets = Y[: len(texts)]

    def program() -> Any:
        vectorize = layers.TextVectorization(output_sequence_length=3)
        vectorize.adapt(texts)
        pipeline = tf.data.Dataset.from_tensor_slices((texts, targets)).batch(3)
        model = keras.Sequential(
            [
                keras.Input((3,), dtype="int32"),
                layers.Embedding(vectorize.vocabulary_size(), 4, mask_zero=True),
                layers.GRU(3),
                layers.Dense(2),
            ]
        )
        model.compile("sgd", "mse")
        pipeline = pipeline.map(lambda text, target: (tf.cast(vectorize(text), "int32"), target))
        return model, model.fit(pipeline, epochs=2, verbose=0, shuffle=False).history

    require_equal(program, mirrored(2))


def test_tensorboard_gets_the_figures_of_the_whole_batch(tmp_path: pathlib.Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with mirrored(2).scope():
        model = mlp()
        model.compile("sgd", "mse", metrics=["mae"])
    board = keras.callbacks.TensorBoard(tmp_path, histogram_freq=1, update_freq=1)
    options = {"batch_size": 8, "epochs": 2, "verbose": 0, "shuffle": False}
    history = model.fit(X, Y, validation_split=0.2, callbacks=[board], **options).history
    for folder, prefix in (("train", ""), ("validation", "val_")):
        events = EventAccumulator(str(tmp_path / folder))
        events.Reload()
        for name in ("loss", "mae"):
            written = [
                float(tf.make_ndarray(event.tensor_proto))
                for event in events.Tensors(f"epoch_{name}")
            ]
            np.testing.assert_allclose(written, history[prefix + name], rtol=1e-5)


@pytest.mark.filterwarnings("ignore:The `native_serialization` parameter:DeprecationWarning")
def test_an_exported_model_serves_without_keras(tmp_path: pathlib.Path) -> None:
    with mirrored(2).scope():
        model = keras.Sequential(
            [keras.Input((6,)), layers.Dense(5), layers.BatchNormalization(), layers.Dense(2)]
        )
        model.compile("adam", "mse")
    model.fit(X, Y, batch_size=8, verbose=0)
    model.export(tmp_path / "served", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    np.testing.assert_allclose(
        loaded.serve(X).numpy(), model.predict(X, verbose=0), rtol=1e-5, atol=1e-5
    )
    assert model.fit(X, Y, batch_size=8, verbose=0).history["loss"]  # it trains on as before
