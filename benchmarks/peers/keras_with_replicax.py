"""The same training with Keras 3 under Replicax: `fit` of a model made in a strategy's scope."""

from __future__ import annotations

import replicax as rx
from benchmarks import problems
from benchmarks.peers.keras_fit import compiled_model, fitting
from benchmarks.timing import Step
from benchmarks.worker import Assignment


def train(assignment: Assignment, variant: str) -> Step:
    """W2 and W11."""
    problem = problems.problem_of(assignment.workload, variant)
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(assignment.replicas)])
    with strategy.scope():
        model = compiled_model(problem)
    return fitting(model, problem)


STEPS = {"W2": train, "W11": train}
