"""The same training with Keras 3 on TensorFlow: `fit` under a MirroredStrategy."""

from __future__ import annotations

from benchmarks import problems
from benchmarks.peers.keras_fit import compiled_model, fitting
from benchmarks.peers.tensorflow_strategy import strategy_of
from benchmarks.timing import Step
from benchmarks.worker import Assignment


def train(assignment: Assignment, variant: str) -> Step:
    """W2."""
    problem = problems.problem_of(assignment.workload, variant)
    with strategy_of(assignment).scope():
        model = compiled_model(problem)
    return fitting(model, problem)


STEPS = {"W2": train}
