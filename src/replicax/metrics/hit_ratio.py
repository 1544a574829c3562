"""True positives against one kind of mistake: what `Precision` and `Recall` have in common."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.metrics.base import Metric, divide_no_nan
from replicax.metrics.thresholds import checked_thresholds, flat_examples


class HitRatio(Metric):
    """True positives divided by themselves and the mistakes that a subclass counts."""

    _mistakes_name: str

    def __init__(
        self,
        thresholds: float | Sequence[float] | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name, dtype)
        self._thresholds = checked_thresholds(thresholds, self.name)
        self._is_one = thresholds is None or np.ndim(thresholds) == 0
        self.true_positives = self.add_state("true_positives", self._thresholds.shape)
        self._mistakes = self.add_state(self._mistakes_name, self._thresholds.shape)

    @abc.abstractmethod
    def _is_mistake(self, predicted: jax.Array, truth: jax.Array) -> jax.Array:
        """Which predictions count against the hits."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds predictions.

        Args:
            y_true: Labels; above 0 means positive.
            y_pred: Scores, of the same shape.
            sample_weight: One weight for all, for each example or for each value.
        """
        truth, scores, weights = flat_examples(
            y_true, y_pred, sample_weight, metric=self.name, dtype=self.state_dtype
        )
        predicted = scores > jnp.asarray(self._thresholds, self.state_dtype)[:, None]
        mistakes = self._is_mistake(predicted, truth)
        self.true_positives.assign_add(jnp.sum(jnp.where(predicted & truth, weights, 0), axis=1))
        self._mistakes.assign_add(jnp.sum(jnp.where(mistakes, weights, 0), axis=1))

    def result(self) -> jax.Array:
        """The ratio over everything seen, for each threshold; 0 where nothing counts."""
        hits = self.true_positives.value
        ratio = divide_no_nan(hits, hits + self._mistakes.value).astype(self.dtype)
        return ratio[0] if self._is_one else ratio
