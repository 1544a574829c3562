"""The same work in a jit over sharded arrays, where XLA decides what to communicate."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding

from benchmarks import models, problems
from benchmarks.peers.hand_written import (
    DIVIDED,
    WHOLE,
    carrying,
    mesh_of,
    place,
    read_first,
    repeated,
    start_of,
)
from benchmarks.timing import Step, wait_for
from benchmarks.worker import Assignment


def empty_step(assignment: Assignment, variant: str) -> Step:
    """W1."""
    mesh = mesh_of(assignment.replicas)
    variable, factors = problems.empty_step(assignment.replicas)

    def one(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = jnp.sum(w * x)
        return w - problems.EMPTY_RATE * total, total

    body = repeated(one) if variant == "64 steps" else one
    step = jax.jit(body, donate_argnums=0, out_shardings=NamedSharding(mesh, WHOLE))
    return carrying(step, place(variable, mesh, WHOLE), place(factors, mesh, DIVIDED), variant)


def train(assignment: Assignment, variant: str) -> Step:
    """W2, W3 and W4."""
    problem = problems.problem_of(assignment.workload, variant)
    mesh = mesh_of(assignment.replicas)
    loss_of, optimizer = models.loss_of(problem), models.optimizer_of(problem)

    @functools.partial(jax.jit, donate_argnums=(0, 1), out_shardings=NamedSharding(mesh, WHOLE))
    def step(params: list[Any], slots: Any, *batch: jax.Array) -> tuple[Any, Any, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
        updates, slots = optimizer.update(gradients, slots, params)
        return optax.apply_updates(params, updates), slots, loss

    *state, batch = start_of(problem, mesh)

    def run() -> jax.Array:
        *state[:], loss = step(*state, *batch)
        return loss

    return Step(run, read_first, wait_for)


STEPS = {"W1": empty_step, "W2": train, "W3": train, "W4": train}
