"""The same training with Flax NNX under Replicax: a module made in a strategy's scope."""

from __future__ import annotations

from typing import Any

from flax import nnx

import replicax as rx
from benchmarks import models, problems
from benchmarks.peers.nnx_training import language_loss, mlp_loss, model_of
from benchmarks.peers.with_replicax import read, strategy_of, wait
from benchmarks.timing import Step
from benchmarks.worker import Assignment


def train(assignment: Assignment, variant: str) -> Step:
    """W2 and W3."""
    problem = problems.problem_of(assignment.workload, variant)
    strategy = strategy_of(assignment)
    with strategy.scope():
        model = model_of(problem)
        optimizer = nnx.Optimizer(model, models.optimizer_of(problem), wrt=nnx.Param)
    loss_of = mlp_loss if problem.model == "mlp" else language_loss
    batch = strategy.distribute_batch(problem.batch)
    replicas = strategy.num_replicas_in_sync

    def part_of_loss(model: Any, *batch: Any) -> Any:
        return loss_of(model, *batch) / replicas

    @rx.function
    def step(*batch: Any) -> Any:
        loss, gradients = nnx.value_and_grad(part_of_loss)(model, *batch)
        optimizer.update(model, gradients)
        return loss

    return Step(lambda: strategy.run(step, args=batch), read, wait, is_bounded=True)


STEPS = {"W2": train, "W3": train}
