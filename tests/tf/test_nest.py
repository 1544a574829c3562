"""``tf.nest``: containers are taken apart and put together, variables and None are leaves."""

import collections
import re

import pytest

import replicax.tf as tf

Pair = collections.namedtuple("Pair", ["left", "right"])


def test_flatten_gives_leaves_in_the_order_of_keys():
    assert tf.nest.flatten({"b": [3, 4], "a": (1, None), "c": {}}) == [1, None, 3, 4]
    assert tf.nest.flatten(Pair(1, (2,))) == [1, 2]
    assert tf.nest.flatten(5) == [5]


def test_variables_and_distributed_values_are_leaves():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = tf.Variable([1.0])
    value = strategy.experimental_distribute_values_from_function(lambda ctx: 1.0)
    flat = tf.nest.flatten([v, {"x": value}])
    assert flat[0] is v
    assert flat[1] is value
    assert not tf.nest.is_nested(v)


def test_map_structure_keeps_the_structure():
    assert tf.nest.map_structure(lambda x: x * 2, {"a": [1, 2]}) == {"a": [2, 4]}
    assert tf.nest.map_structure(lambda x, y: x + y, Pair(1, [2]), Pair(3, [4])) == Pair(4, [6])
    assert tf.nest.map_structure(lambda x: x is None, (None, 1)) == (True, False)


def test_pack_sequence_as_undoes_flatten():
    nest = {"a": 1, "b": Pair([2, None], 3)}
    assert tf.nest.pack_sequence_as(nest, tf.nest.flatten(nest)) == nest


@pytest.mark.parametrize("nested", [[], {}, (), [1], Pair(1, 2)])
def test_containers_are_nested(nested):
    assert tf.nest.is_nested(nested)


@pytest.mark.parametrize("leaf", [1, None, "text"])
def test_leaves_are_not_nested(leaf):
    assert not tf.nest.is_nested(leaf)


def test_equal_structures_pass():
    tf.nest.assert_same_structure({"a": [1, 2]}, {"a": ["x", None]})
    tf.nest.assert_same_structure([1, (2,)], (1, [2]), check_types=False)


REFUSED = {
    "another nesting": (
        lambda: tf.nest.assert_same_structure([1, 2], [1, [2]]),
        ValueError,
        "nests differ in structure: the first is PyTreeDef([*, *]), the second",
    ),
    "another nesting, types ignored": (
        lambda: tf.nest.assert_same_structure([1], [1, 2], check_types=False),
        ValueError,
        "nests differ in structure",
    ),
    "another container": (
        lambda: tf.nest.assert_same_structure([1, 2], (1, 2)),
        TypeError,
        "nests differ in the types of their containers: the first is PyTreeDef([*, *]), the second",
    ),
    "maps over different structures": (
        lambda: tf.nest.map_structure(lambda x, y: x, [1], [1, 2]),
        ValueError,
        "nests differ in structure",
    ),
    "a map over nothing": (
        lambda: tf.nest.map_structure(lambda: 1),
        ValueError,
        "map_structure needs at least one nest after func.",
    ),
    "too few leaves": (
        lambda: tf.nest.pack_sequence_as([0, 0], [1]),
        ValueError,
        "flat_sequence has 1 elements, but structure [0, 0] has 2 leaves.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_match_is_refused(case):
    call, error, text = REFUSED[case]
    with pytest.raises(error, match=re.escape(text)):
        call()
