"""The hand-written program as most people write it first: one psum for each gradient."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from benchmarks.peers import hand_written
from benchmarks.timing import Step
from benchmarks.worker import Assignment


def _each(gradients: Sequence[jax.Array], replicas: int) -> list[jax.Array]:
    del replicas
    return [jax.lax.psum(gradient, hand_written.AXIS) for gradient in gradients]


def train(assignment: Assignment, variant: str) -> Step:
    """W4."""
    return hand_written.train(assignment, variant, _each)


STEPS = {"W4": train}
