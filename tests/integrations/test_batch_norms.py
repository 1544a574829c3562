"""A batch norm in a replica without rows: it keeps its statistics, and its gradients are zero."""

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import numpy as np
import pytest

import replicax as rx
from tests.tiers import full_only

X = np.random.RandomState(0).randn(2, 5, 3).astype(np.float32)


def linen(layer, **kwargs):
    variables = layer.init(jax.random.key(0), X, **kwargs)

    def apply(params, state, x):
        y, new = layer.apply({"params": params, **state}, x, mutable=list(state), **kwargs)
        return y, {name: new[name] for name in state}

    return variables["params"], {"batch_stats": variables["batch_stats"]}, apply


def equinox(mode):
    layer, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode=mode, momentum=0.9)
    params, static = eqx.partition(layer, eqx.is_inexact_array)

    def apply(params, state, x):
        call = lambda row, state: eqx.combine(params, static)(row.T, state)  # noqa: E731
        return jax.vmap(call, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)

    return params, state, apply


def haiku():
    norm = lambda x: hk.BatchNorm(True, True, 0.9)(x, is_training=True)  # noqa: E731
    model = hk.transform_with_state(norm)
    params, state = model.init(jax.random.key(0), X)
    return params, state, lambda params, state, x: model.apply(params, state, None, x)


LAYERS = {
    "linen": lambda: linen(nn.BatchNorm(use_running_average=False, momentum=0.9)),
    "linen, told in the call": lambda: linen(nn.BatchNorm(), use_running_average=False),
    "equinox": lambda: equinox("batch"),
    "equinox ema": lambda: equinox("ema"),
    "haiku": haiku,
}


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize("count", [2, full_only(3), full_only(8)])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_batch_norm_without_rows_counts_nothing(layer, count, compiled):
    params, state, apply = LAYERS[layer]()
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(count)])
    with strategy.scope():
        held = rx.variables_from(state, rules={"": rx.VariableSynchronization.ON_READ})
    x = X[:1]

    def step(x):
        def loss_fn(params):
            y, new = apply(params, rx.values_of(held), x)
            return rx.compute_average_loss((y**3).sum((1, 2))), new

        grads, new = jax.grad(loss_fn, has_aux=True)(params)
        rx.assign(held, new)
        return rx.get_replica_context().all_reduce("SUM", grads)

    step = rx.function(step) if compiled else step
    totals = strategy.run(step, args=(strategy.distribute_batch(x),))
    wanted = jax.grad(lambda params: (apply(params, state, x)[0] ** 3).sum())(params)
    for found, expected in zip(jax.tree.leaves(totals), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    new = jax.tree.leaves(apply(params, state, x)[1])
    variables = jax.tree.leaves(held, is_leaf=lambda leaf: isinstance(leaf, rx.Variable))
    for variable, before, after in zip(variables, jax.tree.leaves(state), new, strict=True):
        first, *others = strategy.experimental_local_results(variable)
        np.testing.assert_allclose(first, after, rtol=1e-5)
        for other in others:
            np.testing.assert_array_equal(other, before)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_batch_norm_outside_of_run_is_that_of_its_library(layer):
    params, state, apply = LAYERS[layer]()
    with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        new = apply(params, state, X[:0])[1]
    assert any(np.isnan(leaf).any() for leaf in jax.tree.leaves(new))
