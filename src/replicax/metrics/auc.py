"""`AUC`: the area under a curve of two rates, over all thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.core.errors import MetricError
from replicax.metrics.base import Metric, divide_no_nan
from replicax.metrics.thresholds import checked_thresholds, flat_examples, sums_above

CURVES = ("ROC", "PR")
SUMMATION_METHODS = ("interpolation", "minoring", "majoring")
_BEYOND = 1e-7  # so that scores of exactly 0 and 1 are on the right side of the outer thresholds


class AUC(Metric):
    """The area under the ROC curve or the precision-recall curve.

    The curve is known at the thresholds only. With scores spread over [0, 1] the
    area is within ``0.5 / (num_thresholds - 1)`` of the one over all scores; it is
    the same where a threshold separates any two different scores. Scores crowded
    into a small part of [0, 1] need `thresholds` there.

    A score outside [0, 1] makes the result NaN: pass ``from_logits=True`` for
    logits.

    Args:
        num_thresholds: How many, spread evenly over [0, 1] and just beyond.
        curve: ``"ROC"`` or ``"PR"``.
        summation_method: ``"interpolation"`` (the trapezoidal rule for ROC, the
            interpolation of Davis and Goadrich for PR), or ``"minoring"`` or
            ``"majoring"`` for a bound from below or above.
        name: A name for the metric and, in front, for its states.
        dtype: The floating dtype of the result; float32 if None.
        thresholds: The thresholds between 0 and 1, instead of `num_thresholds`.
        from_logits: Whether scores are logits; their sigmoid is taken.

    Example:
        >>> auc = AUC()
        >>> auc.update_state([0, 0, 1, 1], [0.0, 0.5, 0.3, 0.9])
        >>> float(auc.result())
        0.75
    """

    def __init__(
        self,
        num_thresholds: int = 200,
        curve: str = "ROC",
        summation_method: str = "interpolation",
        name: str | None = None,
        dtype: Any = None,
        thresholds: Sequence[float] | None = None,
        from_logits: bool = False,
    ) -> None:
        super().__init__(name, dtype)
        self._curve = _one_of("curve", curve.upper(), CURVES, self.name)
        self._method = _one_of(
            "summation_method", summation_method.lower(), SUMMATION_METHODS, self.name
        )
        self._from_logits = from_logits
        self._thresholds = (
            _even_thresholds(num_thresholds, self.name)
            if thresholds is None
            else _own_thresholds(thresholds, self.name)
        )
        shape = self._thresholds.shape
        self.true_positives = self.add_state("true_positives", shape)
        self.false_positives = self.add_state("false_positives", shape)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds predictions.

        Args:
            y_true: Labels; above 0 means positive.
            y_pred: Scores in [0, 1] (or logits), of the same shape.
            sample_weight: One weight for all, for each example or for each value.
        """
        truth, scores, weights = flat_examples(
            y_true, y_pred, sample_weight, metric=self.name, dtype=self.state_dtype
        )
        if self._from_logits:
            scores = jax.nn.sigmoid(scores)
        is_valid = (scores >= 0) & (scores <= 1)
        weights = jnp.where(is_valid, weights, jnp.nan)
        scores = jnp.where(is_valid, scores, 1)  # above the first threshold, where NaN is counted
        positives = sums_above(self._thresholds, scores, jnp.where(truth, weights, 0))
        negatives = sums_above(self._thresholds, scores, jnp.where(truth, 0, weights))
        self.true_positives.assign_add(positives)
        self.false_positives.assign_add(negatives)

    def result(self) -> jax.Array:
        """The area over everything seen."""
        return self._area().astype(self.dtype)

    def _area(self) -> jax.Array:
        hits, false_alarms = self.true_positives.value, self.false_positives.value
        recall = divide_no_nan(hits, hits[0])  # below the first threshold is no score
        if self._curve == "ROC":
            x, y = divide_no_nan(false_alarms, false_alarms[0]), recall
        elif self._method == "interpolation":
            return _interpolated_pr_area(hits, false_alarms)
        else:
            x, y = recall, divide_no_nan(hits, hits + false_alarms)
        heights = {
            "interpolation": (y[:-1] + y[1:]) / 2,
            "minoring": jnp.minimum(y[:-1], y[1:]),
            "majoring": jnp.maximum(y[:-1], y[1:]),
        }
        return jnp.sum((x[:-1] - x[1:]) * heights[self._method])


def _interpolated_pr_area(hits: jax.Array, false_alarms: jax.Array) -> jax.Array:
    """The area where both counts grow linearly between two thresholds, and precision does not."""
    predicted = hits + false_alarms
    more_hits = hits[:-1] - hits[1:]
    more_predicted = predicted[:-1] - predicted[1:]
    slope = divide_no_nan(more_hits, more_predicted)
    offset = hits[1:] - slope * predicted[1:]
    both = (predicted[:-1] > 0) & (predicted[1:] > 0)
    ratio = jnp.where(both, divide_no_nan(predicted[:-1], predicted[1:]), 1)
    return jnp.sum(divide_no_nan(slope * (more_hits + offset * jnp.log(ratio)), hits[0]))


def _one_of(label: str, value: str, choices: Sequence[str], metric: str) -> str:
    if value not in choices:
        raise MetricError(f"metric {metric!r} got {label}={value!r}; expected one of {choices}.")
    return value


def _even_thresholds(num_thresholds: int, metric: str) -> np.ndarray:
    if num_thresholds < 3:
        raise MetricError(
            f"metric {metric!r} got num_thresholds={num_thresholds}; two are beyond 0 and 1. Use "
            "at least 3."
        )
    inner = np.arange(1, num_thresholds - 1) / (num_thresholds - 1)
    return np.concatenate([[-_BEYOND], inner, [1 + _BEYOND]])


def _own_thresholds(thresholds: Sequence[float], metric: str) -> np.ndarray:
    inner = np.sort(checked_thresholds(thresholds, metric))
    if inner[0] < 0 or inner[-1] > 1:
        raise MetricError(
            f"metric {metric!r} got thresholds from {inner[0]} to {inner[-1]}; expected numbers "
            "in [0, 1]."
        )
    return np.concatenate([[-_BEYOND], inner, [1 + _BEYOND]])
