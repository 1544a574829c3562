"""Each row of the table in ``replicax.integrations.keras.hooks``, and what Keras must still have.

A test here fails when a release of Keras moves or renames what a row replaces.
"""

import functools
import importlib
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Callable

import keras
import numpy as np
import pytest
from keras import layers

import replicax as rx
from replicax.integrations.keras import hooks, internals
from replicax.integrations.keras.variables import StrategyVariable
from tests.integrations.keras.problem import TOKENS, X, Y, mirrored, mlp, normal

loss_functions = importlib.import_module("keras.src.losses.loss")
adapters = importlib.import_module("keras.src.trainers.data_adapters")
file_utils = importlib.import_module("keras.src.utils.file_utils")

REPLACED = [
    (keras.Variable, "__new__"),
    (keras.Layer, "__new__"),
    (keras.Layer, "add_weight"),
    (keras.Metric, "__init__"),
    (keras.optimizers.Optimizer, "__init__"),
    (keras.optimizers.Optimizer, "add_variable"),
    (keras.optimizers.Optimizer, "add_variable_from_reference"),
    (keras.optimizers.Optimizer, "apply"),
    (keras.optimizers.Optimizer, "stateless_apply"),
    (keras.optimizers.Optimizer, "scale_loss"),
    (keras.optimizers.LossScaleOptimizer, "apply"),
    (keras.optimizers.LossScaleOptimizer, "stateless_apply"),
    (keras.optimizers.LossScaleOptimizer, "scale_loss"),
    (keras.random.SeedGenerator, "next"),
    (loss_functions, "reduce_values"),
    (loss_functions, "apply_mask"),
    (keras.Model, "compile"),
    (keras.Model, "fit"),
    (keras.Model, "train_on_batch"),
    (keras.Model, "evaluate"),
    (keras.Model, "predict"),
    (keras.Model, "test_on_batch"),
    (keras.Model, "predict_on_batch"),
    (keras.Model, "save"),
    (keras.Model, "save_weights"),
    (keras.Model, "export"),
    (keras.callbacks.BackupAndRestore, "_save_model"),
    (keras.callbacks.BackupAndRestore, "on_train_end"),
    (file_utils, "makedirs"),
    (keras.Model, "make_train_function"),
    (keras.Model, "make_test_function"),
    (keras.Model, "make_predict_function"),
    (keras.Model, "_get_jax_state"),
    (internals.iterator_class(), "_get_iterator"),
    (adapters, "get_data_adapter"),
]


def _owner(owner: object, name: str) -> object:
    return internals.defining_class(owner, name) if isinstance(owner, type) else owner


@pytest.mark.parametrize(("owner", "name"), REPLACED, ids=lambda part: str(part).rsplit(".")[-1])
def test_what_is_replaced_is_where_keras_calls_it(owner: object, name: str) -> None:
    assert (_owner(owner, name), name) in hooks.replaced()


def test_nothing_else_is_replaced() -> None:
    expected = {(id(_owner(owner, name)), name) for owner, name in REPLACED}
    assert {(id(owner), name) for owner, name in hooks.replaced()} == expected


def use_everything(folder: pathlib.Path) -> None:
    """A program in which Keras comes to every place that is replaced."""
    strategy = mirrored(2)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((5,), dtype="int32"),
                    layers.Embedding(7, 4, mask_zero=True),
                    layers.Dropout(0.1),
                    layers.LSTM(3, return_sequences=True),
                    layers.Dense(2),
                ]
            )
            model.compile("adam", "mse")  # Keras scales the loss for half floats
    finally:
        keras.config.set_dtype_policy("float32")
    targets = normal(len(TOKENS), 5, 2)
    backup = keras.callbacks.BackupAndRestore(folder / "backup")
    model.fit(TOKENS, targets, callbacks=[backup], validation_split=0.3, verbose=0)
    model.predict(TOKENS, verbose=0)
    for method in (model.train_on_batch, model.test_on_batch):
        method(TOKENS, targets)
    model.predict_on_batch(TOKENS)
    model.save(folder / "model.keras")
    with strategy.scope():
        model = mlp()
        model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=8, verbose=0)
    with mirrored(2).scope():
        weight = keras.Variable(np.ones(2, "float32"))
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
        optimizer.apply([np.ones(2, "float32")], [weight])
    keras.optimizers.SGD().apply([np.ones(2, "float32")], [keras.Variable(np.ones(2, "float32"))])


def test_keras_still_comes_to_every_place_that_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    seen: set[tuple[int, str]] = set()

    def noting(owner: object, name: str) -> Callable[..., object]:
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def noted(*args: object, **kwargs: object) -> object:
            seen.add((id(owner), name))
            return inner(*args, **kwargs)

        return staticmethod(noted) if name == "__new__" else noted

    for owner, name in hooks.replaced():
        monkeypatch.setattr(owner, name, noting(owner, name))
    use_everything(tmp_path)
    never = [
        (owner, name)
        for owner, name in hooks.replaced()
        if (id(owner), name) not in seen and name != "export"  # tests_adapters: needs TensorFlow
    ]
    assert never == []


def test_variables_of_a_scope_are_of_the_strategy_and_others_plain() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        inside = keras.Variable(np.ones(2, "float32"))
    outside = keras.Variable(np.ones(2, "float32"))
    assert isinstance(inside, StrategyVariable)
    assert inside.replicax_variable.strategy is strategy
    assert type(outside) is keras.Variable


def test_a_layer_is_built_under_the_strategy_it_was_created_under() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        layer = layers.MultiHeadAttention(2, 2, dropout=0.1)
    layer(np.ones((1, 3, 4)), np.ones((1, 3, 4)))
    assert all(isinstance(v, StrategyVariable) for v in layer.variables)
    dense = layer._query_dense  # of Keras: the layer that its own test looks at, too
    dense.enable_lora(2)
    assert all(isinstance(v, StrategyVariable) for v in dense.variables)


def test_the_state_of_an_optimizer_is_mirrored() -> None:
    with mirrored(2).scope():
        model = mlp()
        optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    kinds = {v.replicax_variable.synchronization for v in optimizer.variables}
    assert kinds == {rx.VariableSynchronization.ON_WRITE}


def test_a_value_given_on_read_is_counted_once() -> None:
    with mirrored(3).scope():
        variable = keras.Variable(
            np.float32(7), trainable=False, aggregation="sum", synchronization="on_read"
        )
    assert float(variable) == 7.0


def test_deltas_of_the_replicas_are_summed_by_a_variable_that_says_so() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        variable = keras.Variable(np.float32(1), aggregation="sum", trainable=False)
    strategy.run(rx.function(lambda: variable.assign_add(1.0) * 0))
    assert float(variable) == 3.0


def test_keras_alone_is_as_it_was() -> None:
    model = mlp()
    model.compile("sgd", "mse")
    model.train_on_batch(X, Y)
    assert all(type(v) is keras.Variable for v in [*model.variables, *model.optimizer.variables])


ORDERS = {
    "keras first": "import keras, replicax as rx",
    "replicax first": "import replicax as rx, keras",
    "keras inside the scope": "import replicax as rx",
}


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_importing_keras_is_enough_whenever_it_is_imported(order: str) -> None:
    program = f"""
        {ORDERS[order]}
        with rx.OneDeviceStrategy("CPU:0").scope():
            import keras
            variable = keras.Variable(1.0)
        print(type(variable).__name__, keras.__loader__.__class__.__name__)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["StrategyVariable", "SourceFileLoader"]


UNSUPPORTED = {
    "numpy": ("KERAS_BACKEND", "numpy", "Set the environment variable KERAS_BACKEND=jax"),
    "nnx": ("KERAS_NNX_ENABLED", "true", "Unset it before Keras is imported"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_keras_in_a_way_that_cannot_be_distributed_is_refused(name: str) -> None:
    variable, value, message = UNSUPPORTED[name]
    program = f"""
        import os
        os.environ["{variable}"] = "{value}"
        import keras, replicax as rx
        keras.Variable(1.0)
        try:
            with rx.OneDeviceStrategy("CPU:0").scope():
                keras.Variable(1.0)
        except RuntimeError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    assert message in done.stdout
