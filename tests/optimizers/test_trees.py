"""Trees of variables from trees of arrays, and back."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import replicax as rx
from replicax.optimizers.trees import assign, values_of, variables_from
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


def test_a_function_among_the_leaves_is_named_with_the_way():
    with pytest.raises(ValueError, match=r"the function .* at 'a/act'.*eqx.partition"):
        variables_from({"a": {"act": jax.nn.relu, "w": 1.0}})


def test_variables_of_a_tree_can_have_an_aggregation():
    strategy = mirrored(2)
    on_read = rx.VariableSynchronization.ON_READ
    with strategy.scope():
        sums = variables_from({"n": 0.0}, aggregation=rx.VariableAggregation.SUM)
        own = variables_from(
            {"n": 0.0}, synchronization=on_read, aggregation=rx.VariableAggregation.MEAN
        )

    def step():
        assign(own, {"n": 3.0})
        return assign(sums, {"n": 1.0})["n"].assign_add(1.0)

    for run in (step, rx.function(step)):
        strategy.run(run)
        assert values_of([sums, own]) == [{"n": 4.0}, {"n": 3.0}]
    assert own["n"].synchronization is on_read


@pytest.mark.parametrize("make", [rx.get_strategy, lambda: mirrored(3)], ids=["default", "three"])
def test_a_tree_is_assigned_at_once(make):
    strategy = make()
    with strategy.scope():
        params = variables_from(TREE)
    transformation = optax.sgd(0.5)
    gradients = jax.tree.map(jnp.ones_like, values_of(params))

    def step():
        updates, _ = transformation.update(gradients, transformation.init(values_of(params)))
        assert assign(params, optax.apply_updates(values_of(params), updates)) is params

    step()
    rx.function(step)()
    expected = jax.tree.map(lambda x: np.asarray(x) - 1.0, TREE)
    jax.tree.map(np.testing.assert_array_equal, values_of(params), expected)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": 5.0}, "another structure than the variables"),
        ({"a": 5.0, "c": [1.0, 2.0]}, "another structure than the variables"),
        ({"a": 5.0, "b": np.zeros(3)}, r"shape \(3,\), but variable 'b' has shape \(2,\)"),
        ({"a": 5.0, "b": np.zeros(2, complex)}, "'b'"),
    ],
)
def test_values_that_do_not_fit_leave_all_variables_as_they_were(values, message):
    params = variables_from({"a": 1.0, "b": np.zeros(2, np.float32)})
    with pytest.raises(ValueError, match=message):
        assign(params, values)
    assert float(params["a"].value) == 1.0


def test_only_variables_are_assigned():
    with pytest.raises(ValueError, match=r"assign got 1.0 at 'a' of the first tree"):
        assign({"a": 1.0}, {"a": 2.0})


def test_variables_and_gradients_are_mapped_together():
    params, gradients = variables_from({"w": 2.0}), {"w": 1.0}

    def subtracted(one, other):
        return one - other

    assert jax.tree.map(subtracted, gradients, params) == {"w": -1.0}
    assert jax.tree.map(subtracted, values_of(params), gradients) == {"w": 1.0}


def test_a_pure_function_takes_a_tree_of_variables():
    strategy = mirrored(2)
    with strategy.scope():
        params = variables_from({"w": np.eye(2, dtype=np.float32)})
    batch = strategy.distribute_batch(np.ones((4, 2), np.float32))

    def apply(params, x):
        return jax.nn.relu(jnp.matmul(x, params["w"]))

    for run in (apply, rx.function(apply)):
        result = strategy.run(run, args=(params, batch))
        np.testing.assert_array_equal(strategy.gather(result, axis=0), np.ones((4, 2)))


class Holder:
    """An object of a user with such a tree in an attribute."""

    def __init__(self, params):
        self.params = params


@pytest.mark.parametrize("hold", [lambda params: params, Holder], ids=["itself", "attribute"])
def test_variables_in_a_state_of_nnx_are_trained_and_saved(tmp_path, hold):
    strategy = mirrored(2)
    graphdef, state = nnx.split(nnx.Linear(2, 1, rngs=nnx.Rngs(0)))
    with strategy.scope():
        params, others = variables_from(state), variables_from(state)
        optimizer = rx.Optimizer(optax.sgd(0.5))

    def step(x):
        def loss():
            return jnp.sum(nnx.merge(graphdef, values_of(params))(x))

        optimizer.apply_gradients([(rx.grad(loss, params), params)])

    batch = strategy.distribute_batch(np.ones((4, 2), np.float32))
    for run in (step, rx.function(step)):
        strategy.run(run, args=(batch,))
    after = values_of(params)
    np.testing.assert_allclose(after["bias"][...], [-4.0])  # 2 steps, 4 examples, 0.5
    path = rx.Checkpoint(model=hold(params)).save(tmp_path / "ckpt")
    rx.Checkpoint(model=hold(others)).restore(path).assert_consumed()
    jax.tree.map(np.testing.assert_array_equal, values_of(others), after)
