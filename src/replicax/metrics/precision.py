"""`Precision`: how many of the predicted positives are right."""

from __future__ import annotations

import jax

from replicax.metrics.hit_ratio import HitRatio
from replicax.variables.variable import Variable


class Precision(HitRatio):
    """True positives among all predicted positives; 0 if nothing was predicted positive.

    Args:
        thresholds: Scores above it are predicted positive: one number, or a list
            for a result with one figure each; 0.5 if None.
        name: A name for the metric and, in front, for its states.
        dtype: The floating dtype of the result; float32 if None.

    Example:
        >>> precision = Precision()
        >>> precision.update_state([1, 0, 1, 1], [0.9, 0.8, 0.4, 0.7])
        >>> round(float(precision.result()), 4)
        0.6667
    """

    _mistakes_name = "false_positives"

    @property
    def false_positives(self) -> Variable:
        """The state that counts them."""
        return self._mistakes

    def _is_mistake(self, predicted: jax.Array, truth: jax.Array) -> jax.Array:
        """Predicted, but not true."""
        return predicted & ~truth
