"""The same work with `jax.pmap`, which came before shard_map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import models, problems
from benchmarks.peers.hand_written import AXIS, carrying, packed_sum, repeated
from benchmarks.timing import Step, wait_for
from benchmarks.worker import Assignment


def _placed(tree: Any, devices: Sequence[Any]) -> Any:
    """Arrays with a leading dim of the devices, each part where it belongs."""
    if not jax.tree.leaves(tree):  # an optimizer without slots
        return tree
    return jax.pmap(lambda part: part, devices=devices)(tree)


def _replicated(tree: Any, devices: Sequence[Any]) -> Any:
    stacked = jax.tree.map(lambda a: np.stack([np.asarray(a)] * len(devices)), tree)
    return _placed(stacked, devices)


def _divided(array: np.ndarray, devices: Sequence[Any]) -> jax.Array:
    return _placed(np.stack(np.split(array, len(devices))), devices)


def empty_step(assignment: Assignment, variant: str) -> Step:
    """W1."""
    devices = jax.devices()[: assignment.replicas]
    variable, factors = problems.empty_step(assignment.replicas)

    def replica(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = jax.lax.psum(jnp.sum(w * x), AXIS)
        return w - problems.EMPTY_RATE * total, total

    body = repeated(replica) if variant == "64 steps" else replica
    step = jax.pmap(body, AXIS, donate_argnums=0, devices=devices)
    return carrying(step, _replicated(variable, devices), _divided(factors, devices), variant)


def train(assignment: Assignment, variant: str) -> Step:
    """W2 and W4."""
    problem = problems.problem_of(assignment.workload, variant)
    devices = jax.devices()[: assignment.replicas]
    loss_of, optimizer = models.loss_of(problem), models.optimizer_of(problem)
    slots = optimizer.init([jnp.asarray(array) for array in problem.params])
    state = [_replicated(problem.params, devices), _replicated(slots, devices)]
    batch = [_divided(array, devices) for array in problem.batch]

    def replica(params: list[Any], slots: Any, *batch: jax.Array) -> tuple[Any, Any, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
        gradients = packed_sum(gradients, len(devices))
        updates, slots = optimizer.update(gradients, slots, params)
        return optax.apply_updates(params, updates), slots, loss

    step = jax.pmap(replica, AXIS, donate_argnums=(0, 1), devices=devices)

    def run() -> jax.Array:
        state[0], state[1], loss = step(*state, *batch)
        return loss

    return Step(run, lambda loss: float(np.asarray(loss).sum()), wait_for)


STEPS = {"W1": empty_step, "W2": train, "W4": train}
