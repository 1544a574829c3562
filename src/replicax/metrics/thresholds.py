"""Counts right and wrong predictions above thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.core.errors import MetricError
from replicax.metrics.examples import paired, weights_of


def flat_examples(
    y_true: Any, y_pred: Any, sample_weight: Any, *, metric: str, dtype: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Truth (bool), scores and weights, one entry for each prediction."""
    truth, scores = paired(y_true, y_pred, metric)
    weights = weights_of(scores, sample_weight, metric, dtype)
    return truth.reshape(-1) > 0, scores.reshape(-1).astype(dtype), weights.reshape(-1)


def checked_thresholds(thresholds: float | Sequence[float] | None, metric: str) -> np.ndarray:
    """The thresholds as a vector; 0.5 if None.

    Raises:
        MetricError: If there is none, or one that is no number.
    """
    vector = np.atleast_1d(np.asarray(0.5 if thresholds is None else thresholds, np.float64))
    if vector.ndim != 1 or not vector.size or np.isnan(vector).any():
        raise MetricError(
            f"metric {metric!r} got thresholds={thresholds!r}; expected a number, or a list of "
            "numbers."
        )
    return vector


def sums_above(thresholds: np.ndarray, scores: jax.Array, weights: jax.Array) -> jax.Array:
    """For each threshold, the sum of the weights whose score is above it.

    Args:
        thresholds: In ascending order.
        scores: One for each example.
        weights: One for each example.

    Example:
        >>> sums_above(np.array([0.0, 0.5]), jnp.array([0.1, 0.9]), jnp.array([1.0, 2.0]))
        Array([3., 2.], dtype=float32)
    """
    num_below = jnp.searchsorted(jnp.asarray(thresholds, scores.dtype), scores, side="left")
    by_place = jnp.zeros(len(thresholds) + 1, weights.dtype).at[num_below].add(weights)
    return jnp.flip(jnp.cumsum(jnp.flip(by_place)))[1:]
