"""Trees of variables from trees of arrays, and back."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.optimizers.trees import values_of, variables_from
from tests.optimizers.problem import mirrored


class Layer(NamedTuple):
    kernel: object
    bias: object


TREE = {"layers": [Layer(np.ones((2, 3), np.float32), jnp.zeros(3))], "scale": 2.0, "none": None}


@pytest.mark.parametrize("make", [rx.get_strategy, lambda: mirrored(2)], ids=["default", "two"])
def test_a_tree_of_variables_has_the_structure_and_names_by_path(make):
    strategy = make()
    with strategy.scope():
        variables = variables_from(TREE, prefix="model")
    layer = variables["layers"][0]
    assert isinstance(layer, Layer)
    assert [layer.kernel.name, layer.bias.name, variables["scale"].name] == [
        "model/layers/0/kernel",
        "model/layers/0/bias",
        "model/scale",
    ]
    assert variables["none"] is None
    assert all(v.trainable for v in (layer.kernel, layer.bias, variables["scale"]))
    values = values_of(variables)
    assert jax.tree.structure(values) == jax.tree.structure(TREE)
    for value, given in zip(jax.tree.leaves(values), jax.tree.leaves(TREE), strict=True):
        assert isinstance(value, jax.Array)
        np.testing.assert_array_equal(value, given)


def test_variables_of_a_tree_are_distributed_in_scope():
    strategy = mirrored(2)
    with strategy.scope():
        variables = variables_from(TREE, trainable=False)
    kernel = variables["layers"][0].kernel
    assert isinstance(kernel, rx.DistributedValues)
    assert strategy.extended.variable_created_in_scope(kernel)
    assert not kernel.trainable


def test_a_single_array_is_a_tree_too():
    assert variables_from(1.0).name == "Variable"
    assert variables_from(1.0, prefix="w").name == "w"
    assert float(values_of(variables_from(1.5))) == 1.5


def test_values_in_a_compiled_replica_are_those_of_the_program():
    strategy = mirrored(2)
    with strategy.scope():
        params = variables_from({"w": 2.0})
    result = strategy.run(rx.function(lambda: jax.tree.map(jnp.square, values_of(params))))
    assert float(strategy.reduce("SUM", result["w"], axis=None)) == 8.0


def test_a_variable_in_the_tree_is_refused():
    with pytest.raises(ValueError, match=r"got variable 'w' at 'a/w'.*values_of"):
        variables_from({"a": {"w": rx.Variable(1.0, name="w")}})


def test_a_value_that_differs_between_replicas_has_no_single_value():
    strategy = mirrored(2)
    value = strategy.distribute_batch(np.arange(4.0, dtype=np.float32))
    with pytest.raises(ValueError, match=r"PerReplica value at 'x'.*strategy.reduce"):
        values_of({"x": value})
    total = strategy.run(lambda: rx.get_replica_context().all_reduce("SUM", 1.0))
    assert float(values_of([total])[0]) == 2.0
