"""Small NNX models, and the loop of NNX itself on one device that training is compared with."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

BATCHES = (24, 13)  # rows of the batches, in turns: on 8 replicas 13 leave one without any


class MLP(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(6, 16, rngs=rngs)
        self.last = nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(jax.nn.tanh(self.first(x)))


class ConvNet(nnx.Module):
    def __init__(self, rngs):
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


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and what it is fed."""

    make: Callable[[nnx.Rngs], Any]
    inputs: Callable[[np.random.RandomState, int], np.ndarray]


CASES = {
    "mlp": Case(MLP, lambda random, rows: random.randn(rows, 6).astype(np.float32)),
    "convnet": Case(ConvNet, lambda random, rows: random.randn(rows, 5, 5, 1).astype(np.float32)),
    "gpt": Case(GPT, lambda random, rows: random.randint(0, 8, (rows, 5)).astype(np.int32)),
}

OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.05, momentum=0.9),
    "adamw": lambda: optax.adamw(0.01, eps=1e-3),
    "schedule": lambda: optax.chain(
        optax.clip_by_global_norm(0.5), optax.sgd(optax.cosine_decay_schedule(0.1, 40))
    ),
}


def batches(case, steps):
    random = np.random.RandomState(0)
    for step in range(steps):
        x = case.inputs(random, BATCHES[step % len(BATCHES)])
        yield x, random.randint(0, 3, len(x)).astype(np.int32)


def loss_of(model, x, y, rows):
    logits = model(x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).sum() / rows


def make_step(model, optimizer, rows):
    """A step as a user writes it; `rows` are those of the global batch."""

    def step(x, y):
        loss, grads = nnx.value_and_grad(loss_of)(model, x, y, rows)
        optimizer.update(model, grads)
        return loss

    return step


def reference(case, make_optimizer, steps, shares):
    """Trains with NNX alone: each share of a batch has its own statistics, which are averaged."""
    model = case.make(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, make_optimizer(), wrt=nnx.Param)
    grad = nnx.jit(nnx.value_and_grad(loss_of), static_argnums=3)
    statistics = [nnx.state(nnx.clone(model), nnx.BatchStat) for _ in range(shares)]
    losses = []
    for x, y in batches(case, steps):
        size = -(-len(x) // shares)
        totals, loss = None, 0.0
        for share in range(shares):
            part = slice(share * size, (share + 1) * size)
            if not len(x[part]):
                continue
            nnx.update(model, statistics[share])
            part_loss, grads = grad(model, x[part], y[part], len(x))
            statistics[share] = nnx.state(nnx.clone(model), nnx.BatchStat)
            loss += part_loss
            totals = grads if totals is None else jax.tree.map(jnp.add, totals, grads)
        optimizer.update(model, totals)
        losses.append(float(loss))
    nnx.update(model, jax.tree.map(lambda *each: sum(each) / shares, *statistics))
    return model, losses


def numbers(model):
    """All parameters and statistics by path, on the host."""
    state = nnx.to_pure_dict(nnx.state(model, nnx.Any(nnx.Param, nnx.BatchStat)))
    pairs = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path): np.asarray(value) for path, value in pairs}


def assert_close(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=tolerance, atol=tolerance, err_msg=path)
