"""Trees of variables from trees of arrays, and back."""

from typing import NamedTuple

import equinox as eqx
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


def test_functions_and_strings_stay_as_they_are():
    tree = {"act": jax.nn.relu, "name": "net", "kind": jnp.float32, "none": None, "w": 1.0}
    variables = variables_from(tree)
    assert isinstance(variables["w"], rx.Variable)
    for name in ("act", "name", "kind", "none"):
        assert variables[name] is tree[name]
    assert values_of(variables)["act"] is jax.nn.relu


def test_only_the_arrays_of_an_equinox_module_become_variables():
    dropout = eqx.nn.Dropout(0.5)
    linear = eqx.nn.Linear(2, 3, key=jax.random.key(0))
    variables = variables_from({"layers": [linear, dropout], "scale": 2.0})
    layer, same = variables["layers"]
    assert layer.weight.name == "layers/0/weight"
    assert (same.p, same.inference) == (0.5, False)
    assert isinstance(variables["scale"], rx.Variable)


def test_a_module_of_variables_can_be_called_and_differentiated():
    strategy = mirrored(2)
    module = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))
    conv = eqx.nn.Conv1d(1, 1, 3, key=jax.random.key(0))
    with strategy.scope():
        net, layer = variables_from((module, conv))
    x, signal = jnp.ones(2), jnp.ones((1, 5))
    wanted = eqx.filter_grad(lambda module: module(x)[0])(module)

    def step():
        loss, grads = rx.value_and_grad(lambda: net(x)[0], net)
        same = eqx.filter_grad(lambda module: module(x)[0])(net)
        return loss, grads, same, layer(signal)

    assert wanted.activation is None
    for run in (step, rx.function(step)):
        loss, grads, same, out = strategy.run(run)
        assert grads.activation is None
        np.testing.assert_allclose(loss.values[1], module(x)[0], rtol=1e-6)
        np.testing.assert_allclose(out.values[1], conv(signal), rtol=1e-6)
        for found in (grads, same):
            pairs = zip(found.layers, wanted.layers, strict=True)
            for mine, plain in pairs:
                np.testing.assert_allclose(mine.weight.values[1], plain.weight, rtol=1e-6)


def test_functions_of_lax_take_variables():
    strategy = mirrored(2)
    with strategy.scope():
        w = rx.Variable(np.ones((2, 2), np.float32))
    one = rx.Variable(np.ones((2, 2), np.float32))
    calls = (
        lambda: jax.lax.dot(w, jnp.ones(2)),
        lambda: jax.lax.add(w, one),
        lambda: jax.vmap(lambda row: jax.lax.dot(w, row))(jnp.ones((3, 2)))[0],
        lambda: (
            jax.lax.scan(lambda carry, _: (jax.lax.mul(carry, carry), None), w, None, 2)[0][0] * 2
        ),
    )
    for call in calls:
        for run in (call, rx.function(call)):
            assert float(jnp.sum(call())) == sum(np.ravel(strategy.run(run).values[0]))
    assert jax.grad(lambda x: jax.lax.dot(w, x).sum())(jnp.ones(2)).tolist() == [2.0, 2.0]


ON_READ, ON_WRITE = rx.VariableSynchronization.ON_READ, rx.VariableSynchronization.ON_WRITE


def test_rules_say_what_leaves_become():
    strategy = rx.MirroredStrategy(logical_devices=2)
    tree = {
        "stats": {"mean": np.zeros(2, np.float32), "count": 0},
        "kernel": np.ones((2, 4), np.float32),
        "frozen": jnp.ones(3),
        "bias": np.zeros(4, np.float32),
    }
    rules = {"stats/": ON_READ, "frozen": None, "kernel$": [1, 2], "bias": ON_WRITE}
    with strategy.scope():
        variables = variables_from(tree, rules=rules)
    assert variables["frozen"] is tree["frozen"]
    assert variables["kernel"].partition_dimensions == (1, 2)
    assert variables["bias"].synchronization is ON_WRITE
    mean, count = variables["stats"]["mean"], variables["stats"]["count"]
    assert (mean.aggregation.name, count.aggregation.name) == ("MEAN", "ONLY_FIRST_REPLICA")
    assert not mean.trainable
    assert variables["kernel"].trainable

    def step():
        replica_id = rx.get_replica_context().replica_id_in_sync_group
        assign(variables["stats"], {"mean": jnp.full(2, 1.0 * replica_id), "count": 3})

    strategy.run(rx.function(step))
    np.testing.assert_array_equal(mean.numpy(), np.full(2, np.mean(range(4))))
    assert int(count) == 3


def test_the_first_rule_that_is_found_in_the_name_counts():
    with mirrored(2).scope():
        rules = [(r"a$", ON_READ), ("", ON_WRITE)]
        variables = variables_from({"a": 1.0, "b": 1.0}, prefix="in", rules=rules)
        total = variables_from(1.0, rules={"": ON_READ}, aggregation=rx.VariableAggregation.SUM)
    assert variables["a"].synchronization is ON_READ
    assert variables["b"].synchronization is ON_WRITE
    assert total.aggregation is rx.VariableAggregation.SUM


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"(": None}, r"the pattern '\(' of a rule of variables_from is no regular expression"),
        ({"a": "mirrored"}, r"for 'a' is 'mirrored'; expected VariableSynchronization.ON_READ or"),
        ({"a": rx.VariableSynchronization.AUTO}, "expected VariableSynchronization.ON_READ or"),
        (["a"], "a rule of variables_from is 'a'; expected a pair"),
    ],
)
def test_a_rule_that_is_none_is_refused(rules, message):
    with pytest.raises(ValueError, match=message):
        variables_from({"a": 1.0}, rules=rules)


def test_what_is_no_variable_gets_no_gradient():
    strategy = mirrored(2)
    with strategy.scope():
        tree = variables_from(
            {"w": 2.0, "act": jnp.tanh, "steps": 3, "c": jnp.array(4.0)}, rules={"c": None}
        )
        optimizer = rx.Optimizer(optax.adam(0.1))

    def step():
        loss, grads = rx.value_and_grad(lambda: tree["act"](tree["w"]) * tree["c"], tree)
        assert (grads["act"], grads["steps"], grads["c"]) == (None, None, None)
        optimizer.apply_gradients([(grads, tree)])
        return loss

    strategy.run(rx.function(step))
    optimizer.minimize(lambda: tree["w"] * 1.0, tree)
    assert float(tree["w"]) < 2.0
    assert list(optimizer.slots_of(tree["w"])) == ["0/mu", "0/nu"]
    with pytest.raises(ValueError, match="with respect to variables; got 3"):
        rx.grad(lambda: 1.0, {"a": 3})


def test_a_mirrored_tree_must_get_the_same_on_all_replicas():
    strategy = mirrored(2)
    with strategy.scope():
        params = variables_from({"w": 2.0, "name": "net"})

    def step(x):
        assign(params, {"w": rx.get_replica_context().all_reduce("SUM", x) + 1.0, "name": "net"})

    def drifting(x):
        assign(params, {"w": x, "name": "net"})

    x = strategy.distribute_batch(np.arange(2.0, dtype=np.float32).reshape(2, 1))
    x = strategy.run(lambda x: x[0, 0], args=(x,))
    for run in (step, rx.function(step)):
        strategy.run(run, args=(x,))
        assert float(params["w"]) == 2.0
    with pytest.raises(ValueError, match=r"different values for variable 'w'.*all_reduce"):
        strategy.run(drifting, args=(x,))
    with pytest.raises(ValueError, match="variable 'w' is mirrored, but the value assigned at"):
        strategy.run(rx.function(drifting), args=(x,))
    assert float(params["w"]) == 2.0


def test_what_is_no_variable_cannot_be_assigned():
    tree = variables_from({"w": 2.0, "act": jnp.tanh, "name": "net"})
    assign(tree, {"w": 1.0, "act": jnp.tanh, "name": "net"})
    with pytest.raises(ValueError, match=r"got 'other' at 'name', where the first tree has 'net'"):
        assign(tree, {"w": 5.0, "act": jnp.tanh, "name": "other"})
    assert float(tree["w"]) == 1.0


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
