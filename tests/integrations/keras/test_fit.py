"""`fit`, `evaluate` and `predict` on many replicas give what plain Keras gives on one device."""

from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras import layers

import replicax as rx
from tests.integrations.keras.features import FEATURES, HALF, fitted
from tests.integrations.keras.problem import FIT, IMAGES, X, Y, mirrored, mlp, require_equal
from tests.tiers import full_only

# Keras learns the length of a generator when it ends, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data")


QUICK = {"adam", "convolution", "predict_and_evaluate", "regularizers", "sample_weight"}


@pytest.mark.parametrize("name", [n if n in QUICK else full_only(n) for n in FEATURES])
@pytest.mark.parametrize("num_replicas", [2, full_only(1), full_only(3), full_only(8)])
def test_a_feature_of_keras_gives_what_it_gives_on_one_device(name: str, num_replicas: int) -> None:
    require_equal(FEATURES[name], mirrored(num_replicas), HALF.get(name, 1e-5))


STRATEGIES: dict[str, tuple[Callable[[], rx.Strategy], float]] = {
    "one device": (lambda: rx.OneDeviceStrategy("CPU:1"), 1e-5),
    "central storage": (
        lambda: rx.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"]),
        1e-5,
    ),
    "multi worker, alone": (rx.MultiWorkerMirroredStrategy, 1e-5),
    **{
        f"stage {stage}": (
            lambda stage=stage: rx.MirroredStrategy(
                ["CPU:0", "CPU:1"],
                sharding=rx.experimental.Sharding(stage=stage),
            ),
            1e-4,
        )
        for stage in (1, 2, 3)
    },
    "2 x 2 logical devices": (
        lambda: rx.MirroredStrategy(
            [f"CPU:{index}" for index in range(4)],
            logical_devices=2,
            partition_rules={"kernel": [2, 1]},
        ),
        1e-4,
    ),
}


@pytest.mark.parametrize("name", [n if n == "stage 2" else full_only(n) for n in STRATEGIES])
def test_every_strategy_trains_to_the_weights_of_one_device(name: str) -> None:
    make, tolerance = STRATEGIES[name]
    require_equal(FEATURES["adam"], make(), tolerance)


def test_a_split_weight_and_its_slot_lie_in_the_same_pieces() -> None:
    with STRATEGIES["2 x 2 logical devices"][0]().scope():
        model = mlp()
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
    kernel = model.layers[0].kernel.replicax_variable
    slots = [v.replicax_variable for v in model.optimizer.variables if v.shape == kernel.shape]
    assert kernel.partition_dimensions == (2, 1)
    assert [slot.partition_dimensions for slot in slots] == [(2, 1), (2, 1)]


def test_everything_may_be_called_after_the_scope() -> None:
    def program() -> Any:
        model = mlp()
        return model, {}

    strategy = mirrored(2)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model, _ = program()
    model.compile(keras.optimizers.Adam(), "mse", metrics=[keras.metrics.MeanAbsoluteError()])
    history = model.fit(X, Y, **FIT).history
    keras.utils.set_random_seed(1)
    plain, _ = program()
    plain.compile(keras.optimizers.Adam(), "mse", metrics=[keras.metrics.MeanAbsoluteError()])
    expected = plain.fit(X, Y, **FIT).history
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-5)
    np.testing.assert_allclose(
        history["mean_absolute_error"], expected["mean_absolute_error"], rtol=1e-5
    )
    np.testing.assert_allclose(
        model.predict(X, verbose=0), plain.predict(X, verbose=0), rtol=1e-5, atol=1e-5
    )


def batch_norm_model() -> keras.Model:
    return keras.Sequential(
        [keras.Input((6, 6, 2)), layers.BatchNormalization(momentum=0.5), layers.Flatten()]
    )


def test_batch_norm_averages_the_statistics_of_the_replicas() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        model = batch_norm_model()
        model.compile("sgd", "mse")
    model.train_on_batch(IMAGES[:8], np.zeros((8, 72), "float32"))
    halves = [IMAGES[:4], IMAGES[4:8]]
    mean = np.mean([half.mean(axis=(0, 1, 2)) for half in halves], axis=0)
    variance = np.mean([half.var(axis=(0, 1, 2)) for half in halves], axis=0)
    norm = model.layers[0]
    np.testing.assert_allclose(norm.moving_mean.numpy(), 0.5 * mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(norm.moving_variance.numpy(), 0.5 + 0.5 * variance, rtol=1e-5)


def test_evaluation_uses_the_averaged_statistics_on_every_replica() -> None:
    with mirrored(3).scope():
        model = batch_norm_model()
        model.compile("sgd", "mse")
    model.fit(IMAGES, np.zeros((22, 72), "float32"), **FIT)
    predicted = model.predict(IMAGES, batch_size=8, verbose=0)
    plain = batch_norm_model()
    plain.set_weights(model.get_weights())
    np.testing.assert_allclose(predicted, plain.predict(IMAGES, verbose=0), rtol=1e-5, atol=1e-5)


def test_replicas_drop_different_units_and_the_same_ones_in_every_run() -> None:
    def masks() -> np.ndarray:
        strategy = mirrored(2)
        with strategy.scope():
            dropout = layers.Dropout(0.5, seed=3)
        step = rx.function(lambda x: dropout(x, training=True))
        results = [
            strategy.run(step, args=(strategy.distribute_batch(np.ones((8, 16), "float32")),))
            for _ in range(2)
        ]
        return np.array([strategy.experimental_local_results(result) for result in results])

    first, second = masks(), masks()
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first[0][0], first[0][1])
    assert not np.array_equal(first[0], first[1])


def test_a_second_fit_compiles_nothing() -> None:
    with mirrored(2).scope():
        model, _ = fitted(mlp(), compiled={"metrics": ["mae"]}, validation_data=(X, Y))
    names: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *args, **options: names.append(name)
    )
    model.fit(X, Y, validation_data=(X, Y), **FIT)
    jax.monitoring.clear_event_listeners()
    assert [name for name in names if name.endswith("backend_compile_duration")] == []


def test_our_distributed_datasets_can_be_given_to_fit() -> None:
    strategy = mirrored(2)

    def program() -> Any:
        return fitted(mlp(), epochs=2)

    def distributed() -> Any:
        model = mlp()
        model.compile("sgd", "mse")
        pipeline = rx.data.Dataset.from_tensor_slices((X, Y)).batch(8)
        dataset = strategy.experimental_distribute_dataset(pipeline)
        return model, model.fit(dataset, epochs=2, verbose=0).history

    keras.utils.set_random_seed(1)
    plain, expected = program()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model, history = distributed()
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-5)
    np.testing.assert_allclose(
        model.layers[0].kernel.numpy(), plain.layers[0].kernel.numpy(), rtol=1e-5, atol=1e-5
    )


def test_a_batch_without_examples_on_a_replica_leaves_its_statistics_alone() -> None:
    with mirrored(2).scope():
        model = batch_norm_model()
        model.compile("sgd", "mse")
    model.train_on_batch(IMAGES[:1], np.zeros((1, 72), "float32"))
    moving_mean = model.layers[0].moving_mean.replicax_variable
    own, other = (np.asarray(copy) for copy in moving_mean.values)
    assert np.any(own)
    np.testing.assert_array_equal(other, 0.0)
