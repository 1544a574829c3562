"""Checkpoints that are written under parameter servers restore elsewhere, and the reverse."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx

HALVES = rx.experimental.partitioners.FixedShardsPartitioner(2)


def model():
    w = rx.Variable(np.ones((5, 2), np.float32), name="w")
    optimizer = rx.Optimizer(optax.adam(0.1))
    return w, optimizer, rx.Checkpoint(w=w, optimizer=optimizer)


def gradient_of(w, scale):
    return rx.grad(lambda: scale * jnp.sum(jnp.square(w.value)), w)


def train_on_servers(strategy, w, optimizer, steps):
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    for scale in steps:
        coordinator.schedule(
            lambda scale: optimizer.apply_gradients([(gradient_of(w, scale), w)]), args=(scale,)
        )
        coordinator.join()


def train_mirrored(strategy, w, optimizer, steps):
    step = rx.function(lambda scale: optimizer.apply_gradients([(gradient_of(w, scale), w)]))
    for scale in steps:
        strategy.run(step, args=(scale,))


def state_of(w, optimizer):
    return [w.numpy(), *(variable.numpy() for variable in optimizer.variables)]


def on_servers(new_strategy):
    return new_strategy(2, 2, HALVES), train_on_servers


def mirrored(new_strategy):
    del new_strategy
    return rx.MirroredStrategy(["CPU:0"]), train_mirrored


@pytest.mark.parametrize(
    ("first", "second"),
    [(on_servers, mirrored), (mirrored, on_servers), (on_servers, on_servers)],
    ids=["servers to mirrored", "mirrored to servers", "servers to servers"],
)
def test_training_goes_on_under_another_strategy(new_strategy, tmp_path, first, second):
    strategy, train = mirrored(new_strategy)
    with strategy.scope():
        w, optimizer, _ = model()
    train(strategy, w, optimizer, [1.0, 2.0, 3.0, 4.0])
    expected = state_of(w, optimizer)

    strategy, train = first(new_strategy)
    with strategy.scope():
        w, optimizer, checkpoint = model()
    train(strategy, w, optimizer, [1.0, 2.0])
    path = checkpoint.save(tmp_path / "saved")
    middle = state_of(w, optimizer)

    strategy, train = second(new_strategy)
    with strategy.scope():
        w, optimizer, checkpoint = model()
        optimizer.build([w])
    status = checkpoint.restore(path)
    status.assert_consumed()
    for restored, saved in zip(state_of(w, optimizer), middle, strict=True):
        np.testing.assert_array_equal(restored, saved)
    train(strategy, w, optimizer, [3.0, 4.0])
    for got, wanted in zip(state_of(w, optimizer), expected, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6)
