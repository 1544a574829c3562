"""What TensorFlow programs pass and call works as documented, or says what to write."""

import re
import sys

import jax
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax.core import notices


def mirrored(num_replicas):
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])


def test_a_variable_knows_its_strategy_by_the_documented_name():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        inside = tf.Variable(1.0)
    assert inside.distribute_strategy is strategy
    assert tf.Variable(1.0).distribute_strategy is None


def test_the_latest_checkpoint_is_in_both_places(tmp_path):
    assert rx.latest_checkpoint is tf.train.latest_checkpoint
    assert rx.latest_checkpoint(tmp_path) is None
    saved = rx.Checkpoint(v=tf.Variable(2.0)).save(tmp_path / "ckpt")
    assert rx.latest_checkpoint(tmp_path) == saved
    np.testing.assert_array_equal(tf.train.load_checkpoint(saved).get_tensor("v"), 2.0)


# -- tf.function ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"jit_compile": True},
        {"jit_compile": None, "reduce_retracing": False},
        {"autograph": False},
        {"autograph": True, "experimental_relax_shapes": False},
        {"experimental_compile": True},
        {"input_signature": [tf.TensorSpec((None,), tf.float32)]},
    ],
    ids=str,
)
@pytest.mark.parametrize("num_replicas", [1, 2, 3])
def test_the_documented_arguments_of_a_function_are_taken(options, num_replicas):
    strategy = mirrored(num_replicas)

    @tf.function(**options)
    def step(x):
        return tf.reduce_sum(x * 2.0)

    sums = strategy.run(step, args=(strategy.distribute_batch(np.float32([1, 2, 3])),))
    assert float(strategy.reduce("SUM", sums, axis=None)) == 12.0
    assert isinstance(step, rx.Function)


def test_a_function_with_documented_arguments_can_be_called_at_once():
    double = tf.function(lambda x: 2 * x, jit_compile=True)
    assert float(double(4.0)) == 8.0
    assert tf.function(double) is double


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"jit_compile": False}, r"jit_compile=False\) has no effect: XLA compiles every function"),
        ({"reduce_retracing": True}, r"has no effect: a program is for arrays of certain shapes"),
    ],
)
def test_an_argument_without_effect_says_so(options, text, monkeypatch):
    monkeypatch.setattr(notices, "_shown", set())
    with pytest.warns(rx.ReplicaxWarning, match=text):
        double = tf.function(lambda x: 2 * x, **options)
    assert float(double(4.0)) == 8.0
    tf.function(lambda x: x, **options)  # once only


@pytest.mark.parametrize(
    "name",
    [
        "experimental_attributes",
        "experimental_autograph_options",
        "experimental_follow_type_hints",
        "experimental_implements",
    ],
)
def test_an_argument_about_graphs_is_refused(name):
    text = f"tf.function got {name}='x', which is about TensorFlow's graphs. Leave it out"
    with pytest.raises(TypeError, match=re.escape(text)):
        tf.function(lambda x: x, **{name: "x"})


# -- tf.print ------------------------------------------------------------------------------------


def test_values_are_printed_at_once_where_they_exist(capsys):
    v = tf.Variable([1.0, 2.0])
    tf.print("v:", v, 3, {"a": tf.range(8), "b": None}, sep=" | ", end=" end")
    assert capsys.readouterr().err == ("v: | [1. 2.] | 3 | {'a': [0 1 2 ... 5 6 7], 'b': None} end")
    tf.print(tf.range(8), summarize=-1, output_stream=sys.stdout)
    assert capsys.readouterr().out == "[0 1 2 3 4 5 6 7]\n"


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("num_replicas", [1, 2, 3])
def test_each_replica_prints_its_values(num_replicas, compiled, capsys):
    strategy = mirrored(num_replicas)

    def step(x):
        tf.print("x =", x)
        return x

    batch = strategy.distribute_batch(np.arange(num_replicas))
    result = strategy.run(tf.function(step) if compiled else step, args=(batch,))
    jax.block_until_ready(strategy.experimental_local_results(result))
    jax.effects_barrier()
    expected = [f"x = [{index}]" for index in range(num_replicas)]
    assert sorted(capsys.readouterr().err.splitlines()) == expected


def test_a_per_replica_value_is_printed_with_its_components(capsys):
    strategy = mirrored(2)
    tf.print(strategy.distribute_batch(np.int32([1, 2])))
    assert capsys.readouterr().err.startswith("PerReplica:{\n  0: Array([1], dtype=int32)")


def test_a_path_is_no_stream_to_print_to():
    with pytest.raises(TypeError, match=r"got output_stream='file:///x'; expected a file object"):
        tf.print("x", output_stream="file:///x")


# -- small ones ----------------------------------------------------------------------------------


def test_newaxis_adds_a_dim():
    assert tf.ones([2])[:, tf.newaxis].shape == (2, 1)


@pytest.mark.parametrize("num_replicas", [1, 2, 3])
def test_add_n_adds_on_every_replica(num_replicas):
    strategy = mirrored(num_replicas)

    @tf.function
    def step(x):
        return tf.reduce_sum(tf.add_n([x, x, tf.ones_like(x)]))

    sums = strategy.run(step, args=(strategy.distribute_batch(np.float32([1, 2, 3, 4])),))
    assert float(strategy.reduce("SUM", sums, axis=None)) == 24.0
    assert tf.math.add_n is tf.add_n


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ([], "add_n needs a list of one array or more; got []."),
        ([[1.0], [1.0, 2.0]], "got float32[1], float32[2]. Write x + y to broadcast."),
        ([1, 1.0], "got int32[], float32[]. Write x + y to broadcast."),
    ],
)
def test_what_add_n_cannot_add(inputs, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        tf.add_n(inputs)


def test_a_static_value_is_a_numpy_array_where_the_value_exists():
    value = tf.get_static_value(tf.Variable([1.0, 2.0]))
    assert type(value) is np.ndarray
    np.testing.assert_array_equal(value, [1.0, 2.0])
    seen = []
    tf.function(lambda x: seen.append(tf.get_static_value(x)) or x)(tf.constant(1.0))
    assert seen == [None]
    per_replica = mirrored(2).distribute_batch(np.int32([1, 2]))
    with pytest.raises(TypeError, match=r"Combine the replicas first with strategy\.reduce"):
        tf.get_static_value(per_replica)
