"""Programs that people write with NNX: each trains as it does on one device."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import replicax as rx
from replicax.integrations.flax import distribute

X = np.random.RandomState(0).randn(6, 4, 5).astype(np.float32)
Y = np.random.RandomState(1).randn(6, 2).astype(np.float32)


class Recurrent(nnx.Module):
    def __init__(self, rngs):
        self.rnn = nnx.RNN(nnx.LSTMCell(5, 4, rngs=rngs))
        self.last = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        return self.last(self.rnn(x)[:, -1])


class ScannedLayers(nnx.Module):
    def __init__(self, rngs):
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def make(rngs):
            return nnx.Linear(5, 5, rngs=rngs)

        self.layers, self.last = make(rngs), nnx.Linear(5, 2, rngs=rngs)

    def __call__(self, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def forward(x, layer):
            return jnp.tanh(layer(x))

        return self.last(forward(x[:, -1], self.layers))


class Tied(nnx.Module):
    def __init__(self, rngs):
        self.first = self.again = nnx.Linear(5, 5, rngs=rngs)
        self.last, self.beside = nnx.Linear(5, 2, rngs=rngs), nnx.Linear(5, 2, rngs=rngs)
        self.beside.kernel = self.last.kernel

    def __call__(self, x):
        x = self.again(jnp.tanh(self.first(x[:, -1])))
        return self.last(x) + self.beside(jnp.sin(x))


class Plain(nnx.Module):
    def __init__(self, rngs):
        self.first, self.last = nnx.Linear(5, 4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        return self.last(jnp.tanh(self.first(x[:, -1])))


class LowRank(Plain):
    def __init__(self, rngs):
        super().__init__(rngs)
        self.first = nnx.LoRA(5, 2, 4, base_module=self.first, rngs=rngs)


def adam():
    return optax.adam(0.01)


def accumulating():
    return optax.MultiSteps(optax.adam(0.01), 2)


FIRST = nnx.All(nnx.Param, nnx.PathContains("first"))
PROGRAMS = {
    "lstm": (Recurrent, adam, nnx.Param),
    "scanned layers": (ScannedLayers, adam, nnx.Param),
    "tied weights": (Tied, adam, nnx.Param),
    "frozen part": (Plain, adam, FIRST),
    "lora": (LowRank, adam, nnx.LoRAParam),
    "accumulation": (Plain, accumulating, nnx.Param),
}


def made(name):
    kind, make_optimizer, trained = PROGRAMS[name]
    model = kind(nnx.Rngs(0))
    return model, nnx.Optimizer(model, make_optimizer(), wrt=trained)


def step_of(name, model, optimizer):
    wrt = nnx.DiffState(0, PROGRAMS[name][2])

    def step(x, y):
        loss_fn = lambda model: ((model(x) - y) ** 2).sum() / len(X)  # noqa: E731
        loss, grads = nnx.value_and_grad(loss_fn, argnums=wrt)(model)
        optimizer.update(model, grads)
        return loss

    return step


def params(model):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))]


@pytest.mark.quick
@pytest.mark.parametrize(
    "compiled", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["compiled", "eager"]
)
@pytest.mark.parametrize("stage", [0, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_trains_as_on_one_device(name, stage, compiled):
    sharding = rx.experimental.Sharding(stage=stage) if stage else None
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"], sharding=sharding)
    alone, its_optimizer = made(name)
    with strategy.scope():
        model, optimizer = made(name)
    alone_step = step_of(name, alone, its_optimizer)
    step = step_of(name, model, optimizer)
    step = rx.function(step) if compiled else step
    for _ in range(4):
        wanted = alone_step(X, Y)
        losses = strategy.run(step, args=strategy.distribute_batch((X, Y)))
        np.testing.assert_allclose(strategy.reduce("SUM", losses, axis=None), wanted, rtol=1e-4)
    for found, expected in zip(params(model), params(alone), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_an_average_of_the_parameters_follows_in_the_step(compiled):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model, optimizer = made("frozen part")
    average = distribute(nnx.clone(model), strategy)
    train = step_of("frozen part", model, optimizer)

    def step(x, y):
        train(x, y)
        values = (nnx.state(average, nnx.Param), nnx.state(model, nnx.Param))
        nnx.update(average, jax.tree.map(lambda old, new: 0.5 * old + 0.5 * new, *values))

    step = rx.function(step) if compiled else step
    start = params(model)
    strategy.run(step, args=strategy.distribute_batch((X, Y)))
    for found, old, new in zip(params(average), start, params(model), strict=True):
        np.testing.assert_allclose(found, 0.5 * old + 0.5 * new, rtol=1e-5, atol=1e-7)


def test_a_cache_of_keys_is_each_replicas_own():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    rows = len(X) // 2
    with strategy.scope():
        attention = nnx.MultiHeadAttention(1, 5, decode=True, rngs=nnx.Rngs(0))
        attention.init_cache((rows, 4, 5))
    alone = nnx.MultiHeadAttention(1, 5, decode=True, rngs=nnx.Rngs(0))
    alone.init_cache((len(X), 4, 5))
    distribute(attention, strategy)
    step = rx.function(lambda x: attention(x))
    for position in range(3):
        token = X[:, position : position + 1]
        found = strategy.run(step, args=(strategy.distribute_batch(token),))
        wanted = alone(token)
        np.testing.assert_allclose(strategy.gather(found, axis=0), wanted, rtol=1e-4, atol=1e-5)
