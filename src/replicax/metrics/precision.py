"""`Precision`: how many of the predicted positives are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.metrics.base import Metric, divide_no_nan
from replicax.metrics.thresholds import checked_thresholds, flat_examples


class Precision(Metric):
    """True positives among all predicted positives; 0 if nothing was predicted positive.

    Args:
        thresholds: Scores above it are predicted positive: one number, or a list
            for a result with one figure each; 0.5 if None.
        name: A name for the metric and, in front, for its states.
        dtype: A floating dtype for the states; float32 if None.

    Example:
        >>> precision = Precision()
        >>> precision.update_state([1, 0, 1, 1], [0.9, 0.8, 0.4, 0.7])
        >>> round(float(precision.result()), 4)
        0.6667
    """

    def __init__(
        self,
        thresholds: float | Sequence[float] | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        """Starts with nothing seen."""
        super().__init__(name, dtype)
        self._thresholds = checked_thresholds(thresholds, self.name)
        self._is_one = thresholds is None or np.ndim(thresholds) == 0
        self.true_positives = self.add_state("true_positives", self._thresholds.shape)
        self.false_positives = self.add_state("false_positives", self._thresholds.shape)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds predictions.

        Args:
            y_true: Labels; above 0 means positive.
            y_pred: Scores, of the same shape.
            sample_weight: One weight for all, for each example or for each value.
        """
        truth, scores, weights = flat_examples(
            y_true, y_pred, sample_weight, metric=self.name, dtype=self.dtype
        )
        is_above = scores > jnp.asarray(self._thresholds, self.dtype)[:, None]
        self.true_positives.assign_add(jnp.sum(jnp.where(is_above & truth, weights, 0), axis=1))
        self.false_positives.assign_add(jnp.sum(jnp.where(is_above & ~truth, weights, 0), axis=1))

    def result(self) -> jax.Array:
        """The precision over everything seen, for each threshold."""
        hits = self.true_positives.value
        precision = divide_no_nan(hits, hits + self.false_positives.value)
        return precision[0] if self._is_one else precision
