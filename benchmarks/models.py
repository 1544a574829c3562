"""The loss functions in plain JAX, shared by every peer that is written in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks import problems
from benchmarks.problems import Problem

Loss = Callable[..., jax.Array]


def loss_of(problem: Problem) -> Loss:
    """A function of the parameters and a share of the batch: that share's part of the mean."""
    share = {"mlp": _mlp, "transformer": _transformer, "squares": _squares}[problem.model]
    count = problem.num_examples

    def loss(params: Sequence[Any], *batch: jax.Array) -> jax.Array:
        return share(params, *batch) / count

    return loss


def optimizer_of(problem: Problem) -> optax.GradientTransformation:
    """The optimizer in Optax."""
    if problem.optimizer == "adam":
        return optax.adam(problem.rate, **problems.ADAM)
    return optax.sgd(problem.rate, problems.MOMENTUM if problem.optimizer == "momentum" else None)


def _mlp(params: Sequence[Any], x: jax.Array, y: jax.Array) -> jax.Array:
    for weights, bias in zip(params[0:-2:2], params[1:-2:2], strict=True):
        x = jax.nn.relu(x @ weights + bias)
    logits = jax.nn.log_softmax(x @ params[-2] + params[-1])
    return -jnp.take_along_axis(logits, y[:, None], axis=1).sum()


def _squares(params: Sequence[Any], x: jax.Array) -> jax.Array:
    squares = sum((p * p for p in params), start=jnp.zeros(problems.SMALL))
    # Like a model: every gradient needs the forward pass of the example. Without the logarithm a
    # partitioner may add the examples first, and has no gradients to reduce.
    return jnp.log1p(x @ squares).sum()


def _norm(x: jax.Array, scale: Any, bias: Any) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * scale + bias


def _transformer(params: Sequence[Any], tokens: jax.Array) -> jax.Array:
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = jnp.take(jnp.asarray(params[0]), inputs, axis=0) + params[1]
    for start in range(2, len(params) - 3, 10):
        scale, bias, qkv, out, scale_2, bias_2, up, up_bias, down, down_bias = params[
            start : start + 10
        ]
        x = x + attention(_norm(x, scale, bias) @ qkv) @ out
        hidden = jax.nn.gelu(_norm(x, scale_2, bias_2) @ up + up_bias)
        x = x + hidden @ down + down_bias
    logits = jax.nn.log_softmax(_norm(x, params[-3], params[-2]) @ params[-1])
    return -jnp.take_along_axis(logits, targets[..., None], axis=-1).sum() / problems.LENGTH


def attention(qkv: jax.Array) -> jax.Array:
    """Causal attention of all heads, from queries, keys and values side by side."""
    batch, length, _ = qkv.shape
    q, k, v = jnp.moveaxis(qkv.reshape(batch, length, 3, problems.HEADS, -1), 2, 0)
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / jnp.sqrt(q.shape[-1]).astype(q.dtype)
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)
    return mixed.reshape(batch, length, -1)
