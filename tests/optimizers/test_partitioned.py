"""State of an optimizer is cut into pieces as the variables are that it belongs to."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx

RULES = [("kernel|Optimizer", [4, 1])]  # no rule is for the state of an optimizer
X = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
KERNEL = np.random.default_rng(1).normal(0, 0.1, (16, 32)).astype(np.float32)

TRANSFORMATIONS = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9),
    "adam": lambda: optax.adam(0.01),
    "adamw": lambda: optax.adamw(0.01, weight_decay=0.1),
    "adafactor": lambda: optax.adafactor(0.01, min_dim_size_to_factor=8),
    "lamb": lambda: optax.lamb(0.01),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.01)),
}


def train(rules, make, steps=4, logical_devices=4, **options):
    strategy = rx.MirroredStrategy(
        ["CPU:0", "CPU:1"] if logical_devices == 1 else None,
        logical_devices=logical_devices,
        partition_rules=rules,
    )
    with strategy.scope():
        kernel = rx.Variable(KERNEL, name="kernel")
        bias = rx.Variable(np.zeros(32, np.float32), name="bias")
        optimizer = rx.Optimizer(make(), **options)

    @rx.function
    def step(x):
        def loss():
            return rx.compute_average_loss(((jnp.tanh(x @ kernel + bias) - 0.5) ** 2).mean(1))

        gradients = rx.grad(loss, [kernel, bias])
        optimizer.apply_gradients(zip(gradients, [kernel, bias], strict=True))

    for _ in range(steps):
        strategy.run(step, args=(strategy.distribute_batch(X),))
    return kernel, bias, optimizer


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_training_in_pieces_gives_the_parameters_of_whole_variables(name):
    make = TRANSFORMATIONS[name]
    kernel, bias, optimizer = train(RULES, make)
    whole_kernel, whole_bias, _ = train(None, make, logical_devices=1)
    np.testing.assert_allclose(kernel.numpy(), whole_kernel.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(bias.numpy(), whole_bias.numpy(), rtol=1e-4, atol=1e-5)
    assert kernel.partition_dimensions == (4, 1)
    assert bias.partition_dimensions == (1,)
    for variable in (kernel, bias):
        for slot in optimizer.slots_of(variable).values():
            expected = variable.partition_dimensions if slot.shape == variable.shape else None
            assert slot.partition_dimensions == (expected or (1,) * slot.ndim)
            layout = slot._storage.live_array().sharding
            assert layout.is_equivalent_to(slot._storage.sharding, slot.ndim)


def test_a_slot_of_another_shape_is_whole():
    kernel, _, optimizer = train(RULES, TRANSFORMATIONS["adafactor"])
    shapes = {slot.shape: slot.partition_dimensions for slot in optimizer.slots_of(kernel).values()}
    assert shapes == {(1,): (1,), (16,): (1,), (32,): (1,)}


def test_state_that_belongs_to_no_variable_is_whole():
    _, _, optimizer = train(RULES, TRANSFORMATIONS["adam"])
    assert optimizer.iterations.partition_dimensions == ()
    assert {v.partition_dimensions for v in optimizer.variables if not v.shape} == {()}


def test_gradients_are_added_up_in_pieces():
    make = TRANSFORMATIONS["adam"]
    kernel, _, optimizer = train(RULES, make, accumulate_steps=2)
    whole_kernel, _, _ = train(None, make, logical_devices=1, accumulate_steps=2)
    np.testing.assert_allclose(kernel.numpy(), whole_kernel.numpy(), rtol=1e-4, atol=1e-5)
    sums = {v.name: v.partition_dimensions for v in optimizer.variables if "accumulated/" in v.name}
    assert sums == {
        "Optimizer/accumulated/kernel": (4, 1),
        "Optimizer/accumulated/bias": (1,),
    }


def test_an_eager_step_trains_pieces_too():
    strategy = rx.MirroredStrategy(logical_devices=4)
    with strategy.scope():
        w = rx.Variable(KERNEL, name="w", partition_dimensions=[1, 4])
        optimizer = rx.Optimizer(optax.adam(0.01))
    expected_w = rx.Variable(KERNEL)
    expected = rx.Optimizer(optax.adam(0.01))

    def step(x, w, optimizer):
        optimizer.apply_gradients([(rx.grad(lambda: ((x @ w) ** 2).sum(), w), w)])

    for _ in range(2):
        strategy.run(lambda x: step(x, w, optimizer), args=(strategy.distribute_batch(X),))
        step(X, expected_w, expected)
    np.testing.assert_allclose(w.numpy(), expected_w.numpy(), rtol=1e-4, atol=1e-5)
    assert {slot.partition_dimensions for slot in optimizer.slots_of(w).values()} == {(1, 4)}
