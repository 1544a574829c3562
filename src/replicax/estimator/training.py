"""`train_and_evaluate`: training, with an evaluation after each checkpoint."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from replicax.estimator.estimator import Estimator
from replicax.estimator.hooks import SessionRunHook


@dataclasses.dataclass(frozen=True)
class TrainSpec:
    """What to train with.

    Attributes:
        input_fn: As for ``Estimator.train``.
        max_steps: The total number of steps; to the end of the dataset if None.
        hooks: Called between the steps.

    Example:
        >>> TrainSpec(lambda: None, max_steps=100).max_steps
        100
    """

    input_fn: Callable[..., Any]
    max_steps: int | None = None
    hooks: Sequence[SessionRunHook] | None = None


@dataclasses.dataclass(frozen=True)
class EvalSpec:
    """What to evaluate with.

    Attributes:
        input_fn: As for ``Estimator.evaluate``.
        steps: How many steps to take; to the end of the dataset if None.
        name: As for ``Estimator.evaluate``.
        hooks: Called between the steps.
        throttle_secs: Seconds that lie between two evaluations at least; the last one is made
            in any case. With many workers, whose clocks differ, it must be 0.

    Example:
        >>> EvalSpec(lambda: None, steps=None).throttle_secs
        0
    """

    input_fn: Callable[..., Any]
    steps: int | None = 100
    name: str | None = None
    hooks: Sequence[SessionRunHook] | None = None
    throttle_secs: float = 0


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any], list[Any]]:
    """Trains, and evaluates after each checkpoint; every worker calls it and does both.

    Args:
        estimator: The estimator, whose config says when to save.
        train_spec: What to train with.
        eval_spec: What to evaluate with.

    Returns:
        The metrics of the last evaluation, and an empty list in the place of exports; use
        `replicax.saved_model`.

    Raises:
        ValueError: If `throttle_secs` is given with many workers.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import replicax as rx
        >>> import replicax.tf as tf
        >>> def model_fn(features, labels, mode):
        ...     w = rx.Variable(0.0, name="w")
        ...     loss = ((w * features - labels) ** 2).mean()
        ...     return tf.estimator.EstimatorSpec(
        ...         mode, loss=loss, train_op=lambda: rx.optimizers.SGD(0.1))
        >>> x = np.array([1.0, 2.0], np.float32)
        >>> input_fn = lambda: rx.data.Dataset.from_tensor_slices((x, 3 * x)).batch(2).repeat()
        >>> metrics, _ = train_and_evaluate(
        ...     Estimator(model_fn, tempfile.mkdtemp()),
        ...     TrainSpec(input_fn, max_steps=20), EvalSpec(input_fn, steps=1))
        >>> metrics["global_step"], round(metrics["loss"], 3)
        (20, 0.0)
    """
    strategy = estimator.config.train_distribute
    is_cluster = strategy is not None and strategy.extended.experimental_between_graph
    if is_cluster and eval_spec.throttle_secs:
        raise ValueError(
            f"throttle_secs is {eval_spec.throttle_secs} with many workers, whose clocks "
            "differ. Use 0, and say by save_checkpoints_steps how often to evaluate."
        )
    found: dict[str, Any] | None = None
    evaluated_at = float("-inf")

    def evaluate() -> None:
        nonlocal found, evaluated_at
        found = estimator.evaluate(
            eval_spec.input_fn, eval_spec.steps, eval_spec.hooks, name=eval_spec.name
        )
        evaluated_at = time.monotonic()

    def after_save() -> None:
        if time.monotonic() - evaluated_at >= eval_spec.throttle_secs:
            evaluate()

    estimator._train(train_spec.input_fn, train_spec.hooks, train_spec.max_steps, after_save)
    if found is None or found["global_step"] != estimator._latest_step():
        evaluate()
    assert found is not None
    return found, []
