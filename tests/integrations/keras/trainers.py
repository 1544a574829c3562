"""What Keras's own tests of its trainer look at, as programs like those in `features`.

Written anew: the same uses, on uneven batches, and compared with plain Keras instead of numbers.
"""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from tests.integrations.keras.features import Program, fitted
from tests.integrations.keras.problem import FIT, ROWS, X, Y, mlp, normal
from tests.integrations.keras.styles import Subclassed

TRAINERS: dict[str, Program] = {}


def trainer(program: Program) -> Program:
    TRAINERS[program.__name__] = program
    return program


def _compiled(**options: Any) -> keras.Model:
    model = mlp()
    model.compile("sgd", "mse", metrics=["mae"], **options)
    return model


class _Counted(keras.callbacks.Callback):
    """How often each method was called, with which logs; stops after some batches."""

    def __init__(self, stop: int | None = None) -> None:
        super().__init__()
        self.calls: dict[str, int] = {}
        self.logs: dict[str, list[str]] = {}
        self.stop = stop

    def _note(self, name: str, logs: dict[str, Any] | None) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        self.logs[name] = sorted(logs or {})
        if self.calls[name] == self.stop:
            stopped = {"train": "training", "test": "evaluating", "predict": "predicting"}
            setattr(self.model, f"stop_{stopped[name.split()[0]]}", True)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._note("train batch", logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._note("test batch", logs)

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        self._note("predict batch", {name: None for name in logs or {}})

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.calls["epoch"] = self.calls.get("epoch", 0) + 1
        self.logs["epoch"] = sorted(logs or {})

    def figures(self) -> dict[str, Any]:
        names = {name: sum(map(ord, "".join(keys))) for name, keys in self.logs.items()}
        return {**self.calls, **{f"names of {name}": value for name, value in names.items()}}


def _endless(rows: int = 5) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    while True:
        yield X[:rows], Y[:rows]


@trainer
def a_metric_of_the_model() -> Any:
    class Model(Subclassed):
        def __init__(self) -> None:
            super().__init__()
            self.size = keras.metrics.Mean(name="size")

        def compute_loss(self, x: Any, y: Any, y_pred: Any, *rest: Any, **options: Any) -> Any:
            self.size.update_state(ops.abs(y_pred))
            return super().compute_loss(x, y, y_pred, *rest, **options)

    return fitted(Model(), compiled={"metrics": ["mae"]})


@trainer
def a_compiled_model_in_another() -> Any:
    inner = _compiled()
    inner.fit(X, Y, **FIT)
    inputs = keras.Input((6,))
    return fitted(
        keras.Model(inputs, layers.Dense(2)(inner(inputs))), compiled={"metrics": ["mse"]}
    )


@trainer
def only_a_loss_of_a_layer() -> Any:
    class Size(layers.Layer):
        def call(self, x: Any) -> Any:
            self.add_loss(ops.mean(ops.square(x)))
            return x

    return fitted(
        keras.Sequential([keras.Input((6,)), layers.Dense(2), Size(), layers.Dense(1)]), loss=None
    )


@trainer
def losses_of_some_outputs() -> Any:
    inputs = keras.Input((6,))
    outputs = [layers.Dense(2, name=name)(inputs) for name in "abc"]
    model = keras.Model(inputs, outputs)
    return fitted(model, X, [Y, Y, Y], loss=["mse", None, "mae"])


@trainer
def a_limit_of_epochs_and_steps() -> Any:
    model, seen = _compiled(), _Counted()
    try:
        keras.config.set_max_epochs(2)
        keras.config.set_max_steps_per_epoch(2)
        model.fit(X, Y, batch_size=8, epochs=5, verbose=0, shuffle=False, callbacks=[seen])
    finally:
        keras.config.set_max_epochs(None)
        keras.config.set_max_steps_per_epoch(None)
    return model, seen.figures()


@trainer
def endless_data_with_steps() -> Any:
    model, seen = _compiled(), _Counted()
    history = model.fit(
        _endless(),
        steps_per_epoch=3,
        epochs=2,
        validation_data=_endless(7),
        validation_steps=2,
        callbacks=[seen],
        verbose=0,
    ).history
    figures = model.evaluate(_endless(3), steps=2, verbose=0)
    return model, {**history, **seen.figures(), "figures": np.array(figures)}


@trainer
def steps_that_do_not_divide_an_epoch() -> Any:
    model, seen = _compiled(), _Counted()
    options = {"batch_size": 4, "epochs": 3, "verbose": 0, "shuffle": False}
    history = model.fit(X, Y, steps_per_epoch=4, callbacks=[seen], **options).history
    return model, {**history, **seen.figures()}


@trainer
def stopped_by_a_callback() -> Any:
    model = _compiled()
    seen = {name: _Counted(stop=2) for name in ("train", "test", "predict")}
    model.fit(_endless(), steps_per_epoch=5, epochs=3, callbacks=[seen["train"]], verbose=0)
    model.evaluate(_endless(), steps=5, callbacks=[seen["test"]], verbose=0)
    model.predict(X, batch_size=3, callbacks=[seen["predict"]], verbose=0)
    return model, {
        f"{name} {call}": value
        for name, counted in seen.items()
        for call, value in counted.figures().items()
    }


@trainer
def names_of_logs() -> Any:
    model, seen = _compiled(), _Counted()
    model.fit(X, Y, validation_data=(X[:7], Y[:7]), callbacks=[seen], **FIT)
    model.predict(X, batch_size=8, callbacks=[seen], verbose=0)
    return model, seen.figures()


@trainer
def several_steps_of_a_generator() -> Any:
    model, seen = _compiled(steps_per_execution=2), _Counted()

    def batches() -> Any:
        for start in range(0, ROWS, 5):
            yield X[start : start + 5], Y[start : start + 5]

    history = model.fit(batches(), callbacks=[seen], shuffle=False, verbose=0).history
    return model, {**history, **seen.figures()}


@trainer
def predictions_in_order_of_uneven_batches() -> Any:
    found = {}
    for steps in (1, 3):
        model = _compiled(steps_per_execution=steps)
        ends = np.cumsum([2, 3, 4] * 3)[:7]
        parts = np.split(X, [end for end in ends if end < ROWS])
        found[str(steps)] = model.predict(((part,) for part in parts), verbose=0)
    return model, found


@trainer
def one_loss_for_every_batch_size() -> Any:
    model = _compiled()
    figures = [model.evaluate(X, Y, batch_size=size, verbose=0) for size in (3, 8, 22, 50)]
    for other in figures[1:]:
        np.testing.assert_allclose(other, figures[0], rtol=1e-5)
    return model, {"figures": np.array(figures)}


@trainer
def metrics_in_their_order() -> Any:
    def first(y_true: Any, y_pred: Any) -> Any:
        return ops.mean(ops.abs(y_pred), axis=-1)

    def second(y_true: Any, y_pred: Any) -> Any:
        return ops.mean(ops.square(y_pred), axis=-1)

    found = {}
    for name, order in (("one", [first, second]), ("other", [second, first])):
        model = mlp()
        model.set_weights([np.full_like(weight, 0.1) for weight in model.get_weights()])
        model.compile("sgd", "mse", metrics=order)
        found[name] = np.array(model.evaluate(X, Y, batch_size=8, verbose=0))
    np.testing.assert_allclose(found["one"][1:], found["other"][:0:-1], rtol=1e-5)
    return model, found


@trainer
def a_list_and_a_dictionary_of_inputs() -> Any:
    left, right = keras.Input((6,), name="left"), keras.Input((3,), name="right")
    joined = layers.Concatenate()([left, right])
    model = keras.Model([left, {"right": right}], layers.Dense(2)(joined))
    inputs = [X, {"right": normal(ROWS, 3, seed=8)}]
    model, history = fitted(model, inputs, Y)
    figures = model.test_on_batch(inputs, Y)
    predicted = model.predict_on_batch(inputs)
    return model, {**history, "figures": figures, "predicted": predicted}


@trainer
def counters_that_callbacks_change() -> Any:
    class Counting(Subclassed):
        def __init__(self) -> None:
            super().__init__()
            self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

    class Counter(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.count.assign_add(1.0)

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.count.assign_add(10.0)

    model, history = fitted(Counting(), callbacks=[Counter()], validation_data=(X, Y))
    return model, {**history, "count": float(model.count)}


@trainer
def a_loss_of_the_model_in_evaluate() -> Any:
    class Model(Subclassed):
        def compute_loss(self, x: Any, y: Any, y_pred: Any, *rest: Any, **options: Any) -> Any:
            return super().compute_loss(x, y, y_pred, *rest, **options) * 3.0

    model = Model()
    model.compile("sgd", "mse")
    figures = model.evaluate(X, Y, batch_size=8, sample_weight=np.linspace(1, 2, ROWS), verbose=0)
    return model, {"figures": figures}
