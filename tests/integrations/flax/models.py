"""Small NNX models, trained by Replicax and by NNX alone."""

import jax
import numpy as np
import optax
from flax import nnx

from tests.integrations.problem import loss_of, numbers_of, train_by_shares, train_on


class MLP(nnx.Module):
    def __init__(self, rngs, rate=0.0):
        self.first = nnx.Linear(6, 16, rngs=rngs)
        self.last = nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(jax.nn.tanh(self.first(x)))


class ConvNet(nnx.Module):
    def __init__(self, rngs, rate=0.0):
        self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
        self.last = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(jax.nn.tanh(self.norm(self.conv(x))).mean((1, 2)))


class Block(nnx.Module):
    def __init__(self, width, rate, rngs):
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            2, width, dropout_rate=rate, decode=False, deterministic=False, rngs=rngs
        )
        self.dense = nnx.Linear(width, width, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x):
        mask = nnx.make_causal_mask(x[..., 0])
        x = x + self.attention(self.norm(x), mask=mask)
        return x + self.dropout(jax.nn.gelu(self.dense(x)))


class GPT(nnx.Module):
    def __init__(self, rngs, rate=0.0):
        self.embed = nnx.Embed(8, 8, rngs=rngs)
        self.blocks = nnx.List([Block(8, rate, rngs) for _ in range(2)])
        self.last = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x[:, -1])


MODELS = {"mlp": MLP, "convnet": ConvNet, "gpt": GPT}


def loss_with(model, x, y, rows):
    return loss_of(model(x), y, rows)


def train(strategy, name, make_optimizer, steps, *, wrap):
    """Parameters and statistics after `steps` steps under a strategy, and the losses."""
    with strategy.scope():
        model = MODELS[name](nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, make_optimizer(), wrt=nnx.Param)

    def make_step(rows):
        def step(x, y):
            loss, grads = nnx.value_and_grad(loss_with)(model, x, y, rows)
            optimizer.update(model, grads)
            return loss

        return step

    losses = train_on(strategy, make_step, name, steps, wrap=wrap)
    assert int(optimizer.step[...]) == steps
    return numbers(model), losses


def train_alone(name, make_optimizer, steps, shares):
    """The same by NNX on one device."""
    model = MODELS[name](nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, make_optimizer(), wrt=nnx.Param)
    gradients = nnx.jit(nnx.value_and_grad(loss_with), static_argnums=3)

    def grad(model, statistics, x, y, rows):
        nnx.update(model, statistics)
        loss, grads = gradients(model, x, y, rows)
        return loss, nnx.state(nnx.clone(model), nnx.BatchStat), grads

    def apply(model, grads):
        optimizer.update(model, grads)
        return model

    statistics = nnx.state(nnx.clone(model), nnx.BatchStat)
    model, statistics, losses = train_by_shares(grad, apply, model, statistics, name, steps, shares)
    nnx.update(model, statistics)
    return numbers(model), losses


def numbers(model):
    return numbers_of(nnx.to_pure_dict(nnx.state(model, nnx.Any(nnx.Param, nnx.BatchStat))))


def dropout(strategy):
    """A step that gives a mask of dropout, and what says where its random numbers are."""
    with strategy.scope():
        layer = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    return lambda: layer(np.ones(64, np.float32)), layer


def train_with_dropout(strategy, seed):
    """A GPT with dropout: a step, and all of its state."""
    with strategy.scope():
        model = GPT(nnx.Rngs(seed), rate=0.3)
        optimizer = nnx.Optimizer(model, optax.adamw(0.01), wrt=nnx.Param)

    def step(x, y):
        loss, grads = nnx.value_and_grad(loss_with)(model, x, y, 24)
        optimizer.update(model, grads)
        return loss

    return step, {"model": model, "optimizer": optimizer}
