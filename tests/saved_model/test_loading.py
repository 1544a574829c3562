"""A saved model computes and trains on under every strategy as the one that was saved."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from tests.backend.fresh_process import run_fresh
from tests.contracts.fixtures import each_of
from tests.contracts.strategies import STRATEGIES
from tests.saved_model.models import Model, data, predict, train

strategy = each_of(STRATEGIES)

LAYOUTS = {
    "one device": lambda: rx.OneDeviceStrategy("CPU:3"),
    "no strategy": rx.get_strategy,
    "8 replicas": rx.MirroredStrategy,
    "4 x 2 logical devices": lambda: rx.MirroredStrategy(
        logical_devices=2, partition_rules=[("^w$", [1, 2]), ("^out$", [2, 1])]
    ),
    "split state": lambda: rx.MirroredStrategy(sharding=rx.experimental.Sharding(stage=3)),
    "central storage": rx.experimental.CentralStorageStrategy,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.whole
def test_a_model_of_8_replicas_predicts_and_trains_on_in_every_layout(layout, saved):
    strategy = LAYOUTS[layout]()
    with strategy.scope():
        model = rx.saved_model.load(saved.path)
    np.testing.assert_allclose(predict(strategy, model), saved.predictions, atol=1e-6)
    losses = train(strategy, model, 3)
    np.testing.assert_allclose(losses, saved.later_losses, rtol=1e-5)
    np.testing.assert_allclose(predict(strategy, model), saved.later_predictions, atol=2e-6)


def test_what_each_strategy_saves_is_loaded_without_one(strategy, tmp_path):
    with strategy.scope():
        model = Model()
        inside = rx.saved_model.save(model, tmp_path / "inside")
    outside = rx.saved_model.save(model, tmp_path / "outside")
    x, y = data()
    expected = np.tanh(x @ np.asarray(model.w.value)) @ np.asarray(model.layers[0].value)
    for path in (inside, outside):
        loaded = rx.saved_model.load(path)
        np.testing.assert_allclose(loaded.predict(x), expected, rtol=1e-5, atol=1e-5)
        loaded.loss(x, y)
        assert loaded.seen.numpy() == len(x)


def test_the_variables_of_a_loaded_model_are_those_of_the_strategy(saved):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = rx.saved_model.load(saved.path)
    assert {type(v).__name__ for v in model.variables} == {"MirroredVariable", "SyncOnReadVariable"}
    assert all(v.strategy is strategy for v in model.variables)
    assert sorted(model) == ["layers/0", "loss", "predict", "seen", "w"]
    assert [v.name for v in model.trainable_variables] == ["out", "w"]
    before = int(model.seen.numpy())
    batch = [strategy.distribute_batch(part) for part in data()]
    strategy.run(model.loss, args=tuple(batch))
    assert model.seen.numpy() == before + 16


def test_a_loaded_function_means_the_same_in_eager_and_compiled_runs(saved):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])
    with strategy.scope():
        model = rx.saved_model.load(saved.path)
    x = strategy.distribute_batch(data(100)[0])  # parts of 6, 6 and 4 examples
    eager = strategy.run(lambda x: model.predict(x) * 2, args=(x,))
    compiled = strategy.run(rx.function(lambda x: model.predict(x) * 2), args=(x,))
    for parts in (eager, compiled):
        gathered = strategy.gather(parts, axis=0)
        np.testing.assert_allclose(gathered, 2 * saved.predictions, atol=1e-6)


def test_a_replica_without_examples_gives_none(saved):
    strategy = rx.MirroredStrategy()
    with strategy.scope():
        model = rx.saved_model.load(saved.path)
    x = strategy.distribute_batch(data(100)[0][:5])
    parts = strategy.run(model.predict, args=(x,))
    assert parts.shapes == ((1, 2),) * 5 + ((0, 2),) * 3
    np.testing.assert_allclose(strategy.gather(parts, axis=0), saved.predictions[:5], atol=1e-6)
    with pytest.raises(rx.saved_model.SavedModelError, match="a batch of no examples"):
        rx.saved_model.load(saved.path).loss(np.zeros((0, 4)), np.zeros((0, 2)))


def test_loading_needs_none_of_the_code_that_was_saved(saved, tmp_path):
    np.save(tmp_path / "x.npy", data(100)[0])
    run_fresh(
        f"""
        import sys
        import numpy as np
        import replicax as rx

        model = rx.saved_model.load({saved.path!r})
        np.save({str(tmp_path / "y.npy")!r}, model.predict(np.load({str(tmp_path / "x.npy")!r})))
        assert not [name for name in sys.modules if name.startswith("tests")]
        """
    )
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), saved.predictions, atol=1e-6)


def test_the_stablehlo_of_a_function_is_a_file_of_its_own(saved):
    (program,) = pathlib.Path(saved.path).glob("data-*/functions/predict.stablehlo")
    text = jax.export.deserialize(
        bytearray(program.with_suffix(".jax_export").read_bytes())
    ).mlir_module()
    assert "stablehlo.dot_general" in text
    assert program.read_bytes()[:4] == b"ML\xefR"  # what every file of MLIR begins with


def test_a_checkpoint_restores_from_a_saved_model(saved):
    model = Model()
    rx.Checkpoint(model).restore(saved.path).assert_existing_objects_matched()
    np.testing.assert_allclose(model.predict(data(100)[0]), saved.predictions, atol=1e-6)


def test_a_loaded_model_is_saved_again(saved, tmp_path):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = rx.saved_model.load(saved.path)
        path = rx.saved_model.save(
            {**model.functions, "w": model.w, "hidden": model["layers/0"]}, tmp_path / "again"
        )
    again = rx.saved_model.load(path)
    # What is not in the mapping, and a function uses, is saved by its name.
    assert sorted(again) == ["Variable", "hidden", "loss", "predict", "w"]
    np.testing.assert_allclose(again.predict(data(100)[0]), saved.predictions, atol=1e-6)


def test_nests_of_arguments_and_results_keep_their_structure(tmp_path):
    spec = {"a": rx.TensorSpec([None]), "b": [rx.TensorSpec([], "int32"), None]}

    @rx.function(input_signature=[spec])
    def split(x):
        return {"both": (x["a"] * 2, [x["b"][0] + 1]), "nothing": None, "number": 3}

    path = rx.saved_model.save(split, tmp_path / "model")
    result = rx.saved_model.load(path).serving_default({"a": jnp.ones(2), "b": [4, None]})
    assert jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), result) == {
        "both": ([2.0, 2.0], [5]),
        "nothing": None,
        "number": 3,
    }


def test_values_of_python_and_state_in_loops_are_kept(tmp_path):
    count = rx.Variable(0)

    @rx.function(input_signature=[rx.TensorSpec([None])])
    def add_up(x):
        def body(total, each):
            count.assign_add(1)
            return total + each, total

        return jax.lax.scan(body, 0.0, jnp.stack([x.sum(), x.max()]))[0]

    path = rx.saved_model.save({"add_up": add_up, "epoch": 3, "count": count}, tmp_path / "model")
    model = rx.saved_model.load(path)
    assert model.add_up(np.array([1.0, 2.0])) == 5.0
    assert (model.count.numpy(), model.epoch, count.numpy()) == (2, 3, 0)
    assert model.count.dtype == np.int32


def test_a_program_for_other_platforms_says_where_it_runs(tmp_path):
    double = rx.function(lambda x: 2 * x, input_signature=[rx.TensorSpec([])])
    path = rx.saved_model.save({"double": double}, tmp_path / "all", platforms=["cpu", "tpu"])
    assert rx.saved_model.load(path).double(2.0) == 4.0
    path = rx.saved_model.save({"double": double}, tmp_path / "tpu", platforms=["tpu", "cuda"])
    with pytest.raises(rx.saved_model.SavedModelError, match=r"saved for \['tpu', 'cuda'\], and"):
        rx.saved_model.load(path)


def test_a_summed_variable_is_not_assigned_by_a_loaded_function_on_several_replicas(tmp_path):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        total = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM, name="total")
        add = rx.function(lambda x: total.assign_add(x).value, input_signature=[rx.TensorSpec([])])
        model = rx.saved_model.load(rx.saved_model.save({"add": add}, tmp_path / "model"))
        assert model.add(2.0) == 2.0
    with pytest.raises(rx.saved_model.SavedModelError, match="'total', whose aggregation is SUM"):
        strategy.run(model.add, args=(1.0,))
