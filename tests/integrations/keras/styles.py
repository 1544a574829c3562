"""The many ways in which people write Keras, as programs like those in `features`."""

from typing import Any

import jax
import keras
import numpy as np
from keras import layers, ops

from tests.integrations.keras.features import MAE, Program, fitted
from tests.integrations.keras.problem import CLASSES, FIT, ROWS, TOKENS, WEIGHTS, X, Y, mlp, normal

STYLES: dict[str, Program] = {}


def style(program: Program) -> Program:
    STYLES[program.__name__] = program
    return program


# -- models -----------------------------------------------------------------------------------


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(5, activation="relu")
        self.last = layers.Dense(2)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.last(self.hidden(x))


@style
def subclassed() -> Any:
    return fitted(Subclassed(), compiled=MAE, optimizer="adam")


@style
def nested() -> Any:
    inner = keras.Sequential([keras.Input((6,)), layers.Dense(4, activation="tanh")])
    inputs = keras.Input((6,))
    return fitted(keras.Model(inputs, layers.Dense(2)(inner(inputs))))


@style
def one_layer_used_twice() -> Any:
    shared = layers.Dense(4, activation="tanh")
    a, b = keras.Input((6,)), keras.Input((6,))
    hidden = layers.Concatenate()([shared(a), shared(b)])
    return fitted(keras.Model([a, b], layers.Dense(2)(hidden)), [X, X * 2])


@style
def tied_weights() -> Any:
    embedding = layers.ReversibleEmbedding(7, 4)
    inputs = keras.Input((5,), dtype="int32")
    model = keras.Model(inputs, embedding(embedding(inputs), reverse=True))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return fitted(model, TOKENS, TOKENS, loss=loss)


@style
def a_layer_that_counts() -> Any:
    class Counting(layers.Layer):
        def build(self, shape: Any) -> None:
            self.steps = self.add_weight(
                shape=(), initializer="zeros", dtype="int32", trainable=False, name="steps"
            )

        def call(self, x: Any) -> Any:
            self.steps.assign_add(1)
            return x

    return fitted(keras.Sequential([keras.Input((6,)), Counting(), layers.Dense(2)]))


@style
def a_cloned_model() -> Any:
    model = mlp()
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    return fitted(clone)


@style
def a_model_from_its_config() -> Any:
    model = mlp()
    again = keras.Sequential.from_config(model.get_config())
    again.set_weights(model.get_weights())
    return fitted(again)


@style
def two_models_in_one_scope() -> Any:
    first, second = mlp(), mlp()
    _, history = fitted(first)
    _, other = fitted(second, optimizer="adam")
    inputs = keras.Input((6,))
    both = keras.Model(inputs, [first(inputs), second(inputs)])
    return both, {**history, "other": other["loss"]}


@style
def a_base_that_is_frozen_and_then_not() -> Any:
    base = mlp()
    base.trainable = False
    inputs = keras.Input((6,))
    model = keras.Model(inputs, layers.Dense(2)(base(inputs)))
    fitted(model)
    base.trainable = True
    return fitted(model, optimizer=keras.optimizers.Adam(1e-3))


@style
def both_directions_with_a_mask() -> Any:
    inputs = keras.Input((5,), dtype="int32")
    hidden = layers.Embedding(7, 4, mask_zero=True)(inputs)
    hidden = layers.Bidirectional(layers.LSTM(3))(hidden)
    return fitted(keras.Model(inputs, layers.Dense(2)(hidden)), TOKENS)


@style
def int8_weights() -> Any:
    model, _ = fitted(mlp())
    model.quantize("int8")
    return model, {"predicted": model.predict(X, batch_size=8, verbose=0)}


# -- what is computed -------------------------------------------------------------------------


@style
def a_metric_class() -> Any:
    class MeanError(keras.metrics.Metric):
        def __init__(self, name: str = "error") -> None:
            super().__init__(name=name)
            self.total = self.add_variable((), initializer="zeros", name="total")
            self.count = self.add_weight(shape=(), initializer="zeros", name="count")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.total.assign_add(ops.sum(ops.abs(y_true - y_pred)))
            self.count.assign(self.count + ops.cast(ops.size(y_true), "float32"))

        def result(self) -> Any:
            return self.total / self.count

    return fitted(mlp(), compiled={"metrics": [MeanError()]})


@style
def a_metric_function() -> Any:
    def error(y_true: Any, y_pred: Any) -> Any:
        return ops.mean(ops.square(y_true - y_pred), axis=-1)

    return fitted(mlp(), compiled={"metrics": [error]})


@style
def a_confusion_matrix() -> Any:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3, activation="softmax")])
    metrics = [keras.metrics.MeanIoU(3, sparse_y_pred=False)]
    return fitted(
        model, y=CLASSES, loss="sparse_categorical_crossentropy", compiled={"metrics": metrics}
    )


@style
def own_compute_metrics() -> Any:
    class Own(Subclassed):
        def __init__(self) -> None:
            super().__init__()
            self.size = keras.metrics.Mean(name="size")

        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            figures = super().compute_metrics(x, y, y_pred, sample_weight)
            self.size.update_state(ops.abs(y_pred))
            return figures | {"size": self.size.result()}

    return fitted(Own(), compiled=MAE)


@style
def own_test_step_and_predict_step() -> Any:
    class Own(Subclassed):
        def test_step(self, state: Any, data: Any) -> Any:
            weights, others, metrics = state
            predicted, others = self.stateless_call(weights, others, data[0], training=False)
            return {"own": ops.mean(ops.abs(data[1] - predicted))}, (weights, others, metrics)

        def predict_step(self, state: Any, data: Any) -> Any:
            (x, _, _) = keras.utils.unpack_x_y_sample_weight(data)
            predicted, others = self.stateless_call(*state, x, training=False)
            return predicted * 2, others

    model, _ = fitted(Own())
    figures = model.evaluate(X, Y, batch_size=ROWS, verbose=0, return_dict=True)
    predicted = model.predict(X, batch_size=8, verbose=0)
    return model, {"own": figures["own"], "predicted": predicted}


@style
def two_optimizers() -> Any:
    class Two(Subclassed):
        def train_step(self, state: Any, data: Any) -> Any:
            weights, others, slots, metrics = state
            x, y = data

            def loss_of(weights: Any, optimizer: Any) -> Any:
                predicted, _ = self.stateless_call(weights, others, x)
                return optimizer.scale_loss(self.compute_loss(x, y, predicted))

            gradients = [
                jax.grad(loss_of)(weights, optimizer) for optimizer in (self.optimizer, self.other)
            ]
            first, slots = self.optimizer.stateless_apply(slots, gradients[0], weights)
            fixed = [variable.value for variable in self.other.variables]  # of SGD without momentum
            second, _ = self.other.stateless_apply(fixed, gradients[1], weights)
            weights = [a + b - old for a, b, old in zip(first, second, weights, strict=True)]
            return {}, (weights, others, slots, metrics)

    model = Two()
    model(X[:1])
    model.other = keras.optimizers.SGD(0.02)
    model.other.build(model.trainable_variables)
    return fitted(model, optimizer="adam")


@style
def a_loss_function_of_one_number() -> Any:
    return fitted(mlp(), loss=lambda y_true, y_pred: ops.mean(ops.square(y_true - y_pred)))


@style
def weights_for_each_step_of_a_sequence() -> Any:
    model = keras.Sequential([keras.Input((5, 3)), layers.Dense(2)])
    weights = np.abs(normal(ROWS, 5))
    return fitted(model, normal(ROWS, 5, 3), normal(ROWS, 5, 2, seed=1), sample_weight=weights)


@style
def weights_for_each_output() -> Any:
    inputs = keras.Input((6,))
    outputs = [layers.Dense(2, name="p")(inputs), layers.Dense(2, name="q")(inputs)]
    return fitted(
        keras.Model(inputs, outputs),
        y=[Y, Y * 2],
        loss=["mse", "mae"],
        compiled={"metrics": [["mae"], ["mse"]], "weighted_metrics": [["mae"], ["mse"]]},
        sample_weight=[WEIGHTS, WEIGHTS * 2],
    )


# -- optimizers -------------------------------------------------------------------------------

OPTIMIZERS = (
    *("SGD", "RMSprop", "Adadelta", "Adagrad", "Adamax", "Adafactor", "Nadam", "Ftrl", "Lion"),
    *("Lamb", "Muon"),
)
for _name in OPTIMIZERS:
    STYLES[_name] = lambda _name=_name: fitted(
        mlp(), optimizer=getattr(keras.optimizers, _name)(0.01)
    )

SCHEDULES: dict[str, Any] = {
    "CosineDecay": lambda schedules: schedules.CosineDecay(0.1, 10),
    "PiecewiseConstantDecay": lambda schedules: schedules.PiecewiseConstantDecay(
        [2, 4], [0.1, 0.05, 0.01]
    ),
    "PolynomialDecay": lambda schedules: schedules.PolynomialDecay(0.1, 10),
}
for _name, _make in SCHEDULES.items():
    STYLES[_name] = lambda _make=_make: fitted(
        mlp(), optimizer=keras.optimizers.SGD(_make(keras.optimizers.schedules))
    )

CLIPPING = {"clipnorm": 0.1, "clipvalue": 0.05, "global_clipnorm": 0.1}
for _name, _bound in CLIPPING.items():
    STYLES[_name] = lambda _name=_name, _bound=_bound: fitted(
        mlp(), optimizer=keras.optimizers.Adam(0.01, **{_name: _bound})
    )


@style
def an_optimizer_class() -> Any:
    class Momentum(keras.optimizers.Optimizer):
        def build(self, variables: Any) -> None:
            super().build(variables)
            self.momenta = [self.add_variable_from_reference(v, name="m") for v in variables]

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            momentum = self.momenta[self._get_variable_index(variable)]
            self.assign(momentum, 0.5 * momentum + gradient)
            self.assign_sub(variable, learning_rate * momentum)

    return fitted(mlp(), optimizer=Momentum(learning_rate=0.1))


def _scaled(scale: float) -> Any:
    inner = keras.optimizers.SGD(0.01)
    return keras.optimizers.LossScaleOptimizer(inner, initial_scale=scale, dynamic_growth_steps=2)


@style
def loss_scaling_that_grows() -> Any:
    return fitted(mlp(), optimizer=_scaled(8.0))


@style
def loss_scaling_that_overflows() -> Any:
    return fitted(mlp(), optimizer=_scaled(2.0**126))


@style
def a_fixed_loss_scale() -> Any:
    return fitted(mlp(), optimizer=keras.optimizers.SGD(0.01, loss_scale_factor=16.0))


# -- training ---------------------------------------------------------------------------------


@style
def compiled_again() -> Any:
    model, _ = fitted(mlp())
    model.layers[0].trainable = False
    return fitted(model, optimizer="adam", compiled=MAE)


@style
def fitted_again_with_other_batches() -> Any:
    model, _ = fitted(mlp(), optimizer="adam")
    return model, model.fit(X[:9], Y[:9], **{**FIT, "batch_size": 3}).history


@style
def callbacks_that_change_rate_and_weights() -> Any:
    class Changing(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.1 / (batch + 1)
            kernel = self.model.layers[0].kernel
            kernel.assign(kernel * 0.9)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.set_weights([weight * 1.1 for weight in self.model.get_weights()])

    return fitted(mlp(), callbacks=[Changing()])


@style
def averaged_weights_for_validation() -> Any:
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
    swap = [keras.callbacks.SwapEMAWeights()]
    return fitted(mlp(), optimizer=optimizer, callbacks=swap, validation_data=(X, Y))


@style
def validation_now_and_then() -> Any:
    return fitted(
        mlp(),
        validation_data=(X, Y, WEIGHTS),
        validation_freq=2,
        validation_batch_size=3,
        steps_per_epoch=2,
        initial_epoch=1,
    )


@style
def figures_over_several_batches() -> Any:
    model = mlp()
    model.compile("sgd", "mse", metrics=["mae"])
    figures = [model.train_on_batch(X[:5], Y[:5]) for _ in range(3)]
    figures.append(model.test_on_batch(X[:5], Y[:5]))
    model.reset_metrics()
    figures.append(model.test_on_batch(X[5:9], Y[5:9]))
    return model, {"figures": np.array(figures)}


@style
def predictions_of_every_form() -> Any:
    inputs = keras.Input((6,))
    model = keras.Model(inputs, {"p": layers.Dense(2)(inputs), "q": [layers.Dense(3)(inputs)]})
    model.compile(steps_per_execution=3)
    found = {
        f"{size} {steps}": model.predict(X, batch_size=size, steps=steps, verbose=0)
        for size, steps in ((5, None), (1, 2), (22, None))
    }
    one = model.predict(X[:1], verbose=0)
    parts = {f"{name} p": value["p"] for name, value in found.items()}
    return model, {**parts, "q": found["5 None"]["q"][0], "one": one["p"]}
