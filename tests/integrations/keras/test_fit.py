"""`fit`, `evaluate` and `predict` on many replicas give what plain Keras gives on one device."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import replicax as rx
import replicax.tf as tf
from tests.integrations.keras.features import FEATURES, HALF
from tests.integrations.keras.problem import FIT, X, Y, mirrored, mlp, require_equal
from tests.tiers import full_only

# Keras learns the length of a generator when it ends, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data")


QUICK = {"adam", "predict_and_evaluate", "regularizers", "sample_weight"}


@pytest.mark.parametrize("name", [n if n in QUICK else full_only(n) for n in FEATURES])
@pytest.mark.parametrize("num_replicas", [2, full_only(1), full_only(3), full_only(8)])
def test_a_feature_of_keras_gives_what_it_gives_on_one_device(name: str, num_replicas: int) -> None:
    require_equal(FEATURES[name], mirrored(num_replicas), HALF.get(name, 1e-5))


STRATEGIES: dict[str, tuple[Callable[[], rx.Strategy], float]] = {
    "the default one": (rx.get_strategy, 1e-5),
    "one device": (lambda: rx.OneDeviceStrategy("CPU:1"), 1e-5),
    "central storage": (
        lambda: rx.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"]),
        1e-5,
    ),
    "multi worker, alone": (rx.MultiWorkerMirroredStrategy, 1e-5),
    "TPU": (rx.TPUStrategy, 1e-5),
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


@pytest.mark.filterwarnings("ignore:There is no TPU on this machine")
@pytest.mark.parametrize("name", [n if n == "stage 2" else full_only(n) for n in STRATEGIES])
def test_every_strategy_trains_to_the_weights_of_one_device(name: str) -> None:
    make, tolerance = STRATEGIES[name]
    require_equal(FEATURES["adam"], make(), tolerance)


def test_a_rule_finds_a_variable_by_its_path() -> None:
    rules = {"dense_1/kernel": [1, 2], "tower.*/dense/(kernel|bias)": None, "kernel": [2, 1]}
    devices = [f"CPU:{index}" for index in range(4)]
    strategy = rx.MirroredStrategy(devices, logical_devices=2, partition_rules=rules)
    with strategy.scope():
        parts = [layers.Dense(4, name=name) for name in ("dense", "dense_1", "dense_2")]
        model = keras.Sequential([keras.Input((6,)), *parts], name="tower")
    found = [layer.kernel.replicax_variable.partition_dimensions for layer in model.layers]
    assert model.layers[0].kernel.path == "tower/dense/kernel"
    assert found == [(1, 1), (1, 2), (2, 1)]


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


def read_from(data: Any, shown: Any, strategy: rx.Strategy | None) -> dict[str, Any]:
    """What `fit`, `evaluate` and `predict` give with these data to train on and to look at."""
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = mlp()
        model.compile("sgd", "mse")
    history = model.fit(data, validation_data=data, epochs=2, shuffle=False, verbose=0).history
    loss = model.evaluate(data, verbose=0)
    predicted = model.predict(shown, verbose=0)
    return history | {"evaluated": loss, "predicted": predicted, "weights": model.get_weights()[0]}


@pytest.mark.parametrize("num_replicas", [None, 1, 2, full_only(3), full_only(8)])
def test_our_datasets_can_be_given_to_keras(num_replicas: int | None) -> None:
    strategy = mirrored(num_replicas) if num_replicas else None
    batches = [(X[start : start + 8], Y[start : start + 8]) for start in range(0, len(X), 8)]
    expected = read_from(Batches(batches), Batches([(x,) for x, _ in batches]), None)
    pairs = rx.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    given = [(pairs, pairs.map(lambda x, y: x))]
    if strategy:
        given.append(tuple(map(strategy.experimental_distribute_dataset, given[0])))
    for data, shown in given:
        found = read_from(data, shown, strategy)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


class Batches(keras.utils.PyDataset):
    def __init__(self, batches: list[Any]) -> None:
        super().__init__()
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Any:
        return self._batches[index]


def test_an_endless_dataset_is_read_on_in_the_next_epoch() -> None:
    seen = []

    def noted(index: Any) -> Any:
        seen.append(int(index))
        return np.float32([index]), np.float32([index])

    with mirrored(2).scope():
        model = keras.Sequential([keras.Input((1,)), layers.Dense(1)])
        model.compile("sgd", "mse")
    data = rx.data.Dataset.range(1000).map(noted).batch(4).repeat()
    history = model.fit(data, steps_per_epoch=3, epochs=2, verbose=0).history
    assert len(history["loss"]) == 2
    assert {*range(24)} <= {*seen}


@pytest.mark.filterwarnings("ignore:Do not pass an `input_shape`")  # as the guide does
def test_the_first_program_of_the_guide_runs_with_the_import_changed() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Dense(
                    1, input_shape=(1,), kernel_regularizer=tf.keras.regularizers.L2(1e-4)
                )
            ]
        )
        model.compile(loss="mse", optimizer="sgd")
    dataset = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(100).batch(10)
    losses = model.fit(dataset, epochs=2, verbose=0).history["loss"]
    assert losses[1] < losses[0]
    assert model.evaluate(dataset, verbose=0) < losses[1]
