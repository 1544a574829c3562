"""What can be saved, and what an error says of the rest."""

import collections

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint.errors import CheckpointObjectError
from replicax.core.errors import ContextError
from replicax.core.notices import ReplicaxWarning

Error = rx.saved_model.SavedModelError
SPEC = [rx.TensorSpec([None])]
SCALAR = rx.TensorSpec([])
Pair = collections.namedtuple("Pair", "a b")


def saves(fn, path, signature=SPEC):
    return rx.saved_model.save({"fn": rx.function(fn, input_signature=signature)}, path)


def test_an_object_without_functions_is_refused(tmp_path):
    with pytest.raises(Error, match=r"found no replicax.function in dict. Put @replicax"):
        rx.saved_model.save({"w": rx.Variable(1.0)}, tmp_path / "model")


def test_a_function_without_a_signature_is_named(tmp_path):
    plain = rx.function(lambda x: x)
    with pytest.raises(Error, match="function 'plain' has no input_signature"):
        rx.saved_model.save({"plain": plain}, tmp_path / "model")
    with pytest.raises(Error, match="function 'other' has no input_signature"):
        rx.saved_model.save({}, tmp_path / "model", signatures={"other": plain})
    good = rx.function(lambda x: x, input_signature=SPEC)
    with pytest.warns(ReplicaxWarning, match=r"the functions \['plain'\] have no input_signature"):
        path = rx.saved_model.save({"good": good, "plain": plain}, tmp_path / "model")
    assert list(rx.saved_model.load(path).functions) == ["good"]


def test_signatures_are_saved_beside_the_object(tmp_path):
    good = rx.function(lambda x: x, input_signature=SPEC)
    path = rx.saved_model.save({"w": rx.Variable(1.0)}, tmp_path / "model", signatures=good)
    model = rx.saved_model.load(path)
    assert (list(model.signatures), model.w.numpy()) == (["serving_default"], 1.0)
    with pytest.raises(Error, match=r"signatures is 3; expected a replicax\.function"):
        rx.saved_model.save({}, tmp_path / "model", signatures=3)


def test_a_name_that_python_could_not_have_is_refused(tmp_path):
    good = rx.function(lambda x: x, input_signature=SPEC)
    with pytest.raises(Error, match=r"a function is called '\.\./x'"):
        rx.saved_model.save({"../x": good}, tmp_path / "model")


def test_a_shape_that_is_not_known_at_all_is_refused(tmp_path):
    with pytest.raises(Error, match="needs a TensorSpec with a known number of dims"):
        saves(lambda x: x, tmp_path / "model", [rx.TensorSpec(None)])


def test_python_that_needs_the_number_of_examples_is_named(tmp_path):
    with pytest.raises(Error, match="'fn' cannot be saved for every size of the dims"):
        saves(lambda x: x if x.shape[0] > 7 else 2 * x, tmp_path / "model")


def test_open_first_dims_are_one_size_and_others_their_own(tmp_path):
    specs = [rx.TensorSpec([None, None]), rx.TensorSpec([None])]
    path = saves(lambda x, y: (x * y[:, None]).sum(1), tmp_path / "model", specs)
    model = rx.saved_model.load(path)
    np.testing.assert_array_equal(model.fn(np.ones((2, 5)), np.array([1.0, 2.0])), [5.0, 10.0])
    np.testing.assert_array_equal(model.fn(np.ones((1, 3)), np.array([2.0])), [6.0])


def test_a_verb_of_a_strategy_inside_is_refused(tmp_path):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with pytest.raises(Error, match="'fn' calls run, reduce or another verb of a strategy"):
        saves(lambda x: strategy.run(lambda x: x, args=(x,)), tmp_path / "model", [SCALAR])


def test_a_function_runs_as_one_replica_when_it_is_saved(tmp_path):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    seen = []

    def fn(x):
        context = rx.get_replica_context()
        seen.append((context.num_replicas_in_sync, rx.has_strategy()))
        return context.all_reduce("SUM", x)

    with strategy.scope():
        path = saves(fn, tmp_path / "model")
    assert seen == [(1, False)]
    np.testing.assert_array_equal(rx.saved_model.load(path).fn(np.array([1.0, 2.0])), [1.0, 2.0])


def test_variables_made_by_the_call_are_refused(tmp_path):
    made = []

    def fn(x):
        made.append(made[0] if made else rx.Variable(1.0, name="late"))
        return x * made[0]

    with pytest.raises(Error, match=r"'fn' creates variables \['late'\] when it is called"):
        saves(fn, tmp_path / "model")


def test_results_of_other_classes_are_refused(tmp_path):
    with pytest.raises(Error, match="the result of 'fn' has a Pair, which cannot be loaded"):
        saves(lambda x: Pair(x, x), tmp_path / "model")
    with pytest.raises(Error, match="'fn' returns 'text'; a saved function returns arrays"):
        saves(lambda x: {"a": "text"}, tmp_path / "model")


def test_unknown_platforms_are_refused(tmp_path):
    good = rx.function(lambda x: x, input_signature=SPEC)
    for platforms in (["gpu"], [], "cpu"):
        with pytest.raises(Error, match="expected a list of some of"):
            rx.saved_model.save(good, tmp_path / "model", platforms=platforms)


def test_a_save_in_a_replica_is_refused(tmp_path):
    good = rx.function(lambda x: x, input_signature=SPEC)
    strategy = rx.MirroredStrategy(["CPU:0"])
    with pytest.raises(ContextError, match=r"saved_model.save was called inside strategy.run"):
        strategy.run(lambda: rx.saved_model.save(good, tmp_path / "model"))


def test_an_array_that_is_no_variable_is_refused(tmp_path):
    good = rx.function(lambda x: x, input_signature=SPEC)
    with pytest.raises(CheckpointObjectError, match=r"at 'w', which it cannot save. An array"):
        rx.saved_model.save({"good": good, "w": jnp.ones(2)}, tmp_path / "model")


def test_a_keras_model_is_told_how_keras_saves_it(tmp_path):
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(Error, match=r"Save it with model.save\(path\), or model.export"):
        rx.saved_model.save(model, tmp_path / "model")


def test_a_function_that_calls_a_keras_model_is_saved(tmp_path):
    import keras

    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    fn = rx.function(lambda x: model(x), input_signature=[rx.TensorSpec([None, 2])])
    path = rx.saved_model.save({"predict": fn, "model": model}, tmp_path / "model")
    x = np.arange(6.0, dtype=np.float32).reshape(3, 2)
    expected = x @ np.asarray(model.trainable_variables[0].value)
    np.testing.assert_allclose(rx.saved_model.load(path).predict(x), expected, rtol=1e-5)


def test_a_second_save_replaces_the_first_as_a_whole(tmp_path):
    w = rx.Variable(1.0)
    fn = rx.function(lambda x: w * x, input_signature=SPEC)
    for number in (1.0, 2.0):
        w.assign(number)
        rx.saved_model.save({"fn": fn, "w": w}, tmp_path / "model")
    model = rx.saved_model.load(tmp_path / "model")
    np.testing.assert_array_equal(model.fn(np.array([3.0])), [6.0])
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert len([p for p in (tmp_path / "model").iterdir() if p.is_dir()]) == 1


def test_a_gradient_that_jax_does_not_have_is_left_out(tmp_path):
    import jax

    def fn(x):
        return jax.lax.while_loop(lambda y: y.sum() < 10, lambda y: y * 2, x)

    path = saves(fn, tmp_path / "model", [rx.TensorSpec([2])])
    np.testing.assert_array_equal(rx.saved_model.load(path).fn(np.ones(2)), [8.0, 8.0])
