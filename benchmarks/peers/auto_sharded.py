"""The same work in a jit over sharded arrays, where XLA decides what to communicate."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding

from benchmarks import models, problems
from benchmarks.peers.hand_written import DIVIDED, LOOP, WHOLE, mesh_of, place, read_first
from benchmarks.timing import Step
from benchmarks.worker import Assignment


def empty_step(assignment: Assignment, variant: str) -> Step:
    """W1."""
    mesh = mesh_of(assignment.replicas)
    variable, factors = problems.empty_step(assignment.replicas)
    x = place(factors, mesh, DIVIDED)
    state = [place(variable, mesh, WHOLE)]

    def one(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = jnp.sum(w * x)
        return w - problems.EMPTY_RATE * total, total

    def repeated(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        w, totals = jax.lax.scan(lambda w, _: one(w, x), w, length=LOOP)
        return w, totals[-1]

    is_loop = variant == "64 steps"
    whole = NamedSharding(mesh, WHOLE)
    step = jax.jit(repeated if is_loop else one, donate_argnums=0, out_shardings=(whole, whole))

    def run() -> jax.Array:
        state[0], total = step(state[0], x)
        return total

    return Step(run, read_first, jax.block_until_ready, LOOP if is_loop else 1)


def train(assignment: Assignment, variant: str) -> Step:
    """W2, W3 and W4."""
    problem = problems.problem_of(assignment.workload, variant)
    mesh = mesh_of(assignment.replicas)
    loss_of, optimizer = models.loss_of(problem), models.optimizer_of(problem)
    params = [place(array, mesh, WHOLE) for array in problem.params]
    slots = jax.tree.map(
        lambda a: place(np.zeros(a.shape, a.dtype), mesh, WHOLE),
        jax.eval_shape(optimizer.init, params),
    )
    batch = [place(array, mesh, DIVIDED) for array in problem.batch]
    state = [params, slots]
    whole = NamedSharding(mesh, WHOLE)

    def one(params: list[Any], slots: Any, *batch: jax.Array) -> tuple[Any, Any, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
        updates, slots = optimizer.update(gradients, slots, params)
        return optax.apply_updates(params, updates), slots, loss

    step = jax.jit(one, donate_argnums=(0, 1), out_shardings=(whole, whole, whole))

    def run() -> jax.Array:
        state[0], state[1], loss = step(*state, *batch)
        return loss

    return Step(run, read_first, jax.block_until_ready)


STEPS = {"W1": empty_step, "W2": train, "W3": train, "W4": train}
