"""Nests: JAX pytrees in which distributed values and variables are leaves."""

import collections
import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

import replicax as rx
from replicax.core import nest


class Pair(NamedTuple):
    first: object
    second: object


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Batch:
    image: object
    label: object


class Leaf(nest.NestLeaf):
    """A class that JAX knows as a node, and nests as a leaf."""

    def __init__(self, value):
        self.value = value


jax.tree_util.register_pytree_node(Leaf, lambda leaf: ((leaf.value,), None), lambda _, c: Leaf(*c))

TREES = {
    "leaf": 1,
    "none": None,
    "list": [1, [2, 3]],
    "dict": {"b": 2, "a": (1, None)},
    "named tuple": Pair(1, [2]),
    "dataclass": Batch(image=1, label={"x": 2}),
    "ordered dict": collections.OrderedDict(b=1, a=2),
    "empty": {"a": [], "b": ()},
}


@pytest.mark.parametrize("name", TREES)
def test_flatten_and_unflatten_are_inverse(name):
    leaves, structure = nest.flatten(TREES[name])
    assert nest.unflatten(structure, leaves) == TREES[name]
    doubled = nest.map_leaves(lambda x: 2 * x, TREES[name])
    assert nest.flatten(doubled) == ([2 * x for x in leaves], structure)


def test_marked_classes_are_never_flattened():
    leaf = Leaf(7)
    tree = {"a": leaf, "b": [leaf, 1]}
    assert jax.tree.leaves(tree) == [7, 7, 1]
    assert nest.flatten(tree)[0] == [leaf, leaf, 1]
    assert nest.map_leaves(lambda x: x, tree)["a"] is leaf
    assert nest.is_leaf(leaf)
    assert not nest.is_leaf([leaf])


def test_variables_and_distributed_values_are_leaves():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variable = rx.Variable(1.0)
    plain = rx.Variable(2.0)
    per_replica = strategy.experimental_distribute_values_from_function(lambda ctx: 1.0)
    mirrored = strategy.run(lambda: rx.get_replica_context().all_reduce("SUM", 1.0))
    values = [variable, plain, per_replica, mirrored, variable.values[0]]
    leaves, _ = nest.flatten({"values": values})
    assert len(leaves) == len(values)
    assert all(leaf is value for leaf, value in zip(leaves, values, strict=True))


def test_paths_are_readable():
    tree = {"image": [1, 2], "pair": Pair(3, Batch(4, None))}
    assert nest.leaves_with_path(tree) == [
        ("['image'][0]", 1),
        ("['image'][1]", 2),
        ("['pair'].first", 3),
        ("['pair'].second.image", 4),
    ]
    assert nest.leaves_with_path(5) == [("", 5)]


def test_map_leaves_takes_several_trees():
    assert nest.map_leaves(lambda x, y: x + y, {"a": 1, "b": [2]}, {"a": 10, "b": [20]}) == {
        "a": 11,
        "b": [22],
    }


def test_transpose_merges_corresponding_leaves():
    trees = [{"a": 1, "b": (2, None)}, {"a": 3, "b": (4, None)}]
    assert nest.transpose(trees, list) == {"a": [1, 3], "b": ([2, 4], None)}


def test_transpose_refuses_different_structures_and_shows_both():
    with pytest.raises(
        ValueError,
        match=r"the same structure: replica 0 returned .*'a'.*, replica 1 returned .*\[\*\]",
    ):
        nest.transpose([{"a": 1}, [1]], list)


def test_require_same_structure_names_the_first_that_differs():
    structures = [nest.flatten(tree)[1] for tree in ((1, 2), (3, 4), (5,))]
    assert nest.require_same_structure(structures[:2]) == structures[0]
    with pytest.raises(ValueError, match="replica 2 returned"):
        nest.require_same_structure(structures)


def test_arrays_are_leaves():
    array = jnp.ones(3)
    assert nest.flatten(array)[0][0] is array
