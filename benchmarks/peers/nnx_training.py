"""The same training with Flax NNX: modules, `nnx.Optimizer` and `nnx.jit` over sharded arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import NamedSharding

from benchmarks import models, problems
from benchmarks.peers.hand_written import DIVIDED, WHOLE, mesh_of, place, read_first
from benchmarks.timing import Step, wait_for
from benchmarks.worker import Assignment


class Perceptron(nnx.Module):
    """W2."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        first, second, third, last = problems.SIZES
        self.layers = nnx.List(
            [nnx.Linear(i, o, rngs=rngs) for i, o in ((first, second), (second, third))]
        )
        self.out = nnx.Linear(third, last, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = jax.nn.relu(layer(x))
        return self.out(x)

    def load(self, params: list[Any]) -> None:
        """Sets the initial values."""
        for index, layer in enumerate([*self.layers, self.out]):
            layer.kernel[...] = jnp.asarray(params[2 * index])
            layer.bias[...] = jnp.asarray(params[2 * index + 1])


class Block(nnx.Module):
    """One layer of the transformer."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        width = problems.WIDTH
        self.norm, self.norm_2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.qkv = nnx.Linear(width, 3 * width, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(width, width, use_bias=False, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.out(models.attention(self.qkv(self.norm(x))))
        return x + self.down(jax.nn.gelu(self.up(self.norm_2(x))))

    def parts(self) -> list[Any]:
        """The parameters in the order of the problem."""
        return [
            *(self.norm.scale, self.norm.bias, self.qkv.kernel, self.out.kernel),
            *(self.norm_2.scale, self.norm_2.bias, self.up.kernel, self.up.bias),
            *(self.down.kernel, self.down.bias),
        ]


class Transformer(nnx.Module):
    """W3."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        width = problems.WIDTH
        self.embedding = nnx.Embed(problems.VOCABULARY, width, rngs=rngs)
        self.positions = nnx.Param(jnp.zeros((problems.LENGTH, width)))
        self.blocks = nnx.List([Block(rngs) for _ in range(problems.DEPTH)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.out = nnx.Linear(width, problems.VOCABULARY, use_bias=False, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embedding(tokens) + self.positions[...]
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))

    def load(self, params: list[Any]) -> None:
        """Sets the initial values."""
        parts = [self.embedding.embedding, self.positions]
        for block in self.blocks:
            parts += block.parts()
        parts += [self.norm.scale, self.norm.bias, self.out.kernel]
        for part, array in zip(parts, params, strict=True):
            part[...] = jnp.asarray(array)


def mlp_loss(model: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """The mean over the rows."""
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


def language_loss(model: Any, tokens: jax.Array) -> jax.Array:
    """The mean over the tokens."""
    logits = model(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def model_of(problem: problems.Problem) -> Any:
    """The model of W2 or W3, with the parameters of the problem."""
    model = (Perceptron if problem.model == "mlp" else Transformer)(nnx.Rngs(0))
    model.load(problem.params)
    return model


def train(assignment: Assignment, variant: str) -> Step:
    """W2 and W3."""
    problem = problems.problem_of(assignment.workload, variant)
    mesh = mesh_of(assignment.replicas)
    model = model_of(problem)
    is_mlp = problem.model == "mlp"
    loss_of: Callable[..., jax.Array] = mlp_loss if is_mlp else language_loss
    optimizer = nnx.Optimizer(model, models.optimizer_of(problem), wrt=nnx.Param)
    whole = NamedSharding(mesh, WHOLE)
    for module in (model, optimizer):
        state = nnx.state(module)
        nnx.update(module, jax.device_put(state, whole))
    batch = [place(array, mesh, DIVIDED) for array in problem.batch]

    @nnx.jit
    def step(model: Any, optimizer: Any, *batch: jax.Array) -> jax.Array:
        loss, gradients = nnx.value_and_grad(loss_of)(model, *batch)
        optimizer.update(model, gradients)
        return loss

    return Step(lambda: step(model, optimizer, *batch), read_first, wait_for)


STEPS = {"W2": train, "W3": train}
