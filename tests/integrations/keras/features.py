"""Programs that use one feature of Keras each: ``NAME: () -> (model, history)``."""

from collections.abc import Callable
from typing import Any

import grain
import jax
import keras
import numpy as np
from keras import layers, ops

from tests.integrations.keras.problem import (
    CLASSES,
    FIT,
    WEIGHTS,
    X,
    Y,
    mlp,
)

Program = Callable[[], tuple[keras.Model, dict[str, Any]]]
FEATURES: dict[str, Program] = {}
HALF = {"mixed_float16": 2e-3, "mixed_bfloat16": 2e-2}
"""How near a program with half floats comes, whose sums are rounded in another order."""


def feature(program: Program) -> Program:
    FEATURES[program.__name__.strip("_")] = program
    return program


def fitted(
    model: keras.Model,
    x: Any = X,
    y: Any = Y,
    *,
    optimizer: Any = "sgd",
    loss: Any = "mse",
    compiled: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[keras.Model, dict[str, Any]]:
    model.compile(optimizer, loss, **(compiled or {}))
    return model, model.fit(x, y, **{**FIT, **options}).history


MAE = {"metrics": ["mae"]}


@feature
def sgd() -> Any:
    return fitted(mlp(), compiled=MAE, validation_data=(X[:9], Y[:9]))


@feature
def adam() -> Any:
    return fitted(mlp(), optimizer="adam", compiled=MAE)


@feature
def adamw_with_clipping() -> Any:
    optimizer = keras.optimizers.AdamW(global_clipnorm=0.1, weight_decay=0.01)
    return fitted(mlp(), optimizer=optimizer)


@feature
def sample_weight() -> Any:
    compiled = {"weighted_metrics": ["mae"]}
    return fitted(mlp(), sample_weight=WEIGHTS, compiled=compiled)


@feature
def class_weight() -> Any:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3, activation="softmax")])
    return fitted(
        model,
        y=CLASSES,
        loss="sparse_categorical_crossentropy",
        compiled={"metrics": ["accuracy"]},
        class_weight={0: 1.0, 1: 2.0, 2: 0.5},
    )


@feature
def regularizers() -> Any:
    return fitted(mlp(kernel_regularizer="l2", activity_regularizer="l2"))


@feature
def add_loss() -> Any:
    class Adds(layers.Layer):
        def call(self, x: Any) -> Any:
            self.add_loss(ops.mean(ops.square(x)))
            return x

    return fitted(keras.Sequential([keras.Input((6,)), layers.Dense(4), Adds(), layers.Dense(2)]))


@feature
def validation_split() -> Any:
    return fitted(mlp(), validation_split=0.3)


@feature
def sum_loss() -> Any:
    loss = keras.losses.MeanSquaredError(reduction="sum")
    optimizer = keras.optimizers.SGD(1e-3)
    return fitted(mlp(), optimizer=optimizer, loss=loss, sample_weight=WEIGHTS)


@feature
def mean_with_sample_weight() -> Any:
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    return fitted(mlp(), loss=loss, sample_weight=WEIGHTS)


@feature
def own_train_step() -> Any:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(2)
            self.tracker = keras.metrics.Mean(name="loss")
            self.error = keras.metrics.MeanAbsoluteError(name="mae")

        @property
        def metrics(self) -> Any:
            return [self.tracker, self.error]

        def call(self, x: Any, training: bool = False) -> Any:
            return self.dense(x)

        def loss_of(self, weights: Any, others: Any, x: Any, y: Any) -> Any:
            predicted, others = self.stateless_call(weights, others, x, training=True)
            return self.compute_loss(x, y, predicted), (predicted, others)

        def train_step(self, state: Any, data: Any) -> Any:
            weights, others, slots, metrics = state
            x, y = data
            gradient = jax.value_and_grad(self.loss_of, has_aux=True)
            (loss, (predicted, others)), grads = gradient(weights, others, x, y)
            weights, slots = self.optimizer.stateless_apply(slots, grads, weights)
            tracked = self.tracker.stateless_update_state(
                metrics[:2], loss, sample_weight=x.shape[0]
            )
            error = self.error.stateless_update_state(metrics[2:], y, predicted)
            logs = {
                "loss": self.tracker.stateless_result(tracked),
                "mae": self.error.stateless_result(error),
                "plain": loss,
            }
            return logs, (weights, others, slots, [*tracked, *error])

    return fitted(Own())


@feature
def own_compute_loss() -> Any:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(2)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def compute_loss(
            self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None
        ) -> Any:
            return ops.mean(ops.square(y - y_pred))

    return fitted(Own(), loss=None)


@feature
def run_eagerly() -> Any:
    return fitted(mlp(), compiled={**MAE, "run_eagerly": True}, epochs=1)


@feature
def without_jit() -> Any:
    return fitted(mlp(), compiled={"jit_compile": False}, epochs=1)


@feature
def steps_per_execution() -> Any:
    return fitted(mlp(), optimizer="adam", compiled={**MAE, "steps_per_execution": 2})


@feature
def more_steps_per_execution_than_steps() -> Any:
    return fitted(mlp(), compiled={**MAE, "steps_per_execution": 20})


def _with_policy(policy: str) -> Any:
    keras.config.set_dtype_policy(policy)
    try:
        return fitted(mlp())
    finally:
        keras.config.set_dtype_policy("float32")


@feature
def mixed_float16() -> Any:
    return _with_policy("mixed_float16")


@feature
def mixed_bfloat16() -> Any:
    return _with_policy("mixed_bfloat16")


@feature
def gradient_accumulation() -> Any:
    return fitted(mlp(), optimizer=keras.optimizers.Adam(gradient_accumulation_steps=2))


@feature
def moving_average_of_weights() -> Any:
    optimizer = keras.optimizers.Adam(use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2)
    return fitted(mlp(), optimizer=optimizer)


@feature
def constraint() -> Any:
    return fitted(mlp(kernel_constraint="max_norm"))


@feature
def learning_rate_schedule() -> Any:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    return fitted(mlp(), optimizer=keras.optimizers.SGD(schedule))


@feature
def lora() -> Any:
    model = mlp()
    model.layers[0].enable_lora(2)
    return fitted(model)


@feature
def frozen_layer() -> Any:
    model = mlp()
    model.layers[0].trainable = False
    return fitted(model)


@feature
def remat() -> Any:
    with keras.RematScope(mode="full"):
        model = mlp()
    return fitted(model)


@feature
def model_built_by_fit() -> Any:
    return fitted(keras.Sequential([layers.Dense(3), layers.Dense(2)]))


@feature
def adapted_normalization() -> Any:
    normalization = layers.Normalization()
    normalization.adapt(X)
    return fitted(keras.Sequential([keras.Input((6,)), normalization, layers.Dense(2)]))


@feature
def fewer_examples_than_replicas() -> Any:
    return fitted(mlp(), X[:5], Y[:5], compiled=MAE, batch_size=4)


@feature
def callbacks() -> Any:
    seen: list[float] = []
    chosen = [
        keras.callbacks.EarlyStopping("loss", patience=1, restore_best_weights=True),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
        keras.callbacks.ReduceLROnPlateau("loss"),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen.append(logs["loss"])
        ),
    ]
    model, history = fitted(mlp(), callbacks=chosen)
    return model, {**history, "seen": seen}


@feature
def on_batch() -> Any:
    model = mlp()
    model.compile("sgd", "mse", metrics=["mae"])
    figures = [
        model.train_on_batch(X[:7], Y[:7]),
        model.train_on_batch(X[7:16], Y[7:16], sample_weight=WEIGHTS[7:16]),
        model.test_on_batch(X, Y),
    ]
    return model, {"figures": np.array(figures), "predicted": model.predict_on_batch(X[:5])}


@feature
def predict_and_evaluate() -> Any:
    model = mlp()
    model.compile("sgd", "mse", metrics=["mae"])
    predicted = model.predict(X, batch_size=8, verbose=0)
    figures = model.evaluate(X, Y, batch_size=8, sample_weight=WEIGHTS, verbose=0)
    return model, {"predicted": predicted, "figures": figures}


# -- data -------------------------------------------------------------------------------------


@feature
def generator() -> Any:
    def batches() -> Any:
        for start in range(0, len(X), 8):
            yield X[start : start + 8], Y[start : start + 8]

    model = mlp()
    model.compile("sgd", "mse")
    return model, model.fit(batches(), shuffle=False, verbose=0).history


@feature
def py_dataset() -> Any:
    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return X[index * 8 : index * 8 + 8], Y[index * 8 : index * 8 + 8]

    model = mlp()
    model.compile("sgd", "mse")
    return model, model.fit(Batches(), epochs=2, shuffle=False, verbose=0).history


@feature
def grain_dataset() -> Any:
    dataset = grain.MapDataset.source(list(zip(X, Y, strict=True))).batch(8)
    model = mlp()
    model.compile("sgd", "mse")
    return model, model.fit(dataset, epochs=2, shuffle=False, verbose=0).history


@feature
def shuffled() -> Any:
    return fitted(mlp(), shuffle=True)
