"""The steps of the benchmarks W2, W3 and W4, in their own sizes or small."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import numpy as np

import replicax as rx
from benchmarks import models, problems
from benchmarks.problems import Problem

MODELS = ["W2 momentum", "W2 adam", "W3", "W4"]


def problem(model: str, *, is_small: bool) -> Problem:
    """The problem of a benchmark."""
    workload, _, variant = model.partition(" ")
    whole = problems.problem_of(workload, variant or "50 variables")
    if not is_small:
        return whole
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) * 0.1).astype(np.float32)

    if workload == "W2":
        pairs = itertools.pairwise((24, 160, 10))
        params = [array for pair in pairs for array in (normal(*pair), normal(pair[1]))]
        labels = rng.integers(0, 10, 16).astype(np.int32)
        return dataclasses.replace(whole, params=params, batch=(normal(16, 24), labels))
    if workload == "W3":
        layer = [normal(16), normal(16), normal(16, 48), normal(16, 16), normal(16), normal(16)]
        layer += [normal(16, 64), normal(64), normal(64, 16), normal(16)]
        ends = [normal(32, 16), normal(8, 16)], [normal(16), normal(16), normal(16, 32)]
        tokens = rng.integers(0, 32, (8, 9)).astype(np.int32)
        return dataclasses.replace(whole, params=[*ends[0], *layer, *ends[1]], batch=(tokens,))
    return dataclasses.replace(whole, params=whole.params[:12])


@functools.cache
def training(model: str, strategy: rx.Strategy, *, is_small: bool = True) -> tuple[Any, Any]:
    """A training step as the benchmarks write it, and its distributed batch."""
    chosen = problem(model, is_small=is_small)
    loss_of = models.loss_of(chosen)
    with strategy.scope():
        params = rx.variables_from(chosen.params)
        optimizer = rx.Optimizer(models.optimizer_of(chosen))
    optimizer.build(params)
    batch = strategy.distribute_batch(chosen.batch)

    @rx.function
    def step(*batch: Any) -> Any:
        loss, gradients = rx.value_and_grad(lambda: loss_of(params, *batch), params)
        optimizer.apply_gradients([(gradients, params)])
        return loss

    return step, batch
