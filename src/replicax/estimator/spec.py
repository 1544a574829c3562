"""What a ``model_fn`` returns, and the modes that it is called for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

import replicax as rx


class ModeKeys:
    """What a ``model_fn`` is called for.

    Attributes:
        TRAIN: To train.
        EVAL: To evaluate.
        PREDICT: To predict; there are no labels.

    Example:
        >>> ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT
        ('train', 'eval', 'infer')
    """

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


@dataclasses.dataclass(frozen=True)
class EstimatorSpec:
    """What a ``model_fn`` returns.

    Attributes:
        mode: The mode that it was called with.
        predictions: A nest of arrays with one row for each example; needed in PREDICT.
        loss: The mean loss of the examples of this replica; needed in TRAIN and EVAL.
        train_op: A function that makes the optimizer; needed in TRAIN. The estimator calls it once,
            in the scope of the strategy. It differentiates the loss, and applies that optimizer.
        eval_metric_ops: Metrics by name, each updated in the ``model_fn``, in EVAL.

    Raises:
        ValueError: If what the mode needs is missing, or is of another kind.

    Example:
        >>> import replicax as rx
        >>> EstimatorSpec(ModeKeys.EVAL, loss=0.5).loss
        0.5
        >>> spec = EstimatorSpec(
        ...     ModeKeys.TRAIN, loss=0.5, train_op=lambda: rx.optimizers.SGD(0.1))
        >>> EstimatorSpec(ModeKeys.TRAIN, loss=0.5, train_op=rx.optimizers.SGD(0.1))
        Traceback (most recent call last):
            ...
        ValueError: an EstimatorSpec for 'train' needs train_op: a function that makes ...
    """

    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Callable[[], rx.Optimizer] | None = None
    eval_metric_ops: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Checks the fields."""
        modes = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)
        if self.mode not in modes:
            raise ValueError(
                f"an EstimatorSpec got the mode {self.mode!r}; expected one of {modes}."
            )
        for name, metric in (self.eval_metric_ops or {}).items():
            if not isinstance(metric, rx.metrics.Metric):
                raise ValueError(
                    f"eval_metric_ops[{name!r}] is {metric!r}; expected a replicax.metrics.Metric "
                    "that the model_fn has updated: metric.update_state(labels, predictions)."
                )
        if self.mode == ModeKeys.PREDICT:
            if self.predictions is None:
                raise ValueError(
                    "an EstimatorSpec for 'infer' needs predictions: arrays with one row for each "
                    "example."
                )
            return
        if self.loss is None or jnp.ndim(self.loss):
            raise ValueError(
                f"an EstimatorSpec for {self.mode!r} needs loss: one number, the mean of the "
                f"examples, such as losses.mean(). Got {self.loss!r}."
            )
        if self.mode == ModeKeys.TRAIN and not callable(self.train_op):
            raise ValueError(
                "an EstimatorSpec for 'train' needs train_op: a function that makes the optimizer, "
                f"such as `lambda: replicax.optimizers.SGD(0.1)`. Got {self.train_op!r}."
            )
