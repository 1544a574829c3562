"""The accuracies: how many predictions are right, for each way to say what is right."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from replicax.core.errors import MetricError
from replicax.metrics.average import Average
from replicax.metrics.examples import paired


class BinaryAccuracy(Average):
    """How many of the yes-or-no predictions are right.

    Args:
        name: A name for the metric and, in front, for its states.
        dtype: The floating dtype of the result; float32 if None.
        threshold: Predictions above it mean yes.

    Example:
        >>> accuracy = BinaryAccuracy()
        >>> accuracy.update_state([1, 0, 1, 1], [0.9, 0.2, 0.4, 0.8])
        >>> float(accuracy.result())
        0.75
    """

    def __init__(self, name: str | None = None, dtype: Any = None, threshold: float = 0.5) -> None:
        super().__init__(name, dtype)
        self._threshold = threshold

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds predictions.

        Args:
            y_true: Labels; above 0 means yes.
            y_pred: Scores, of the same shape.
            sample_weight: One weight for all, for each example or for each value.
        """
        truth, predictions = paired(y_true, y_pred, self.name)
        self._accumulate((predictions > self._threshold) == (truth > 0), sample_weight)


class CategoricalAccuracy(Average):
    """How often the class with the highest score is the right one; labels are one-hot.

    Args:
        name: A name for the metric and, in front, for its states.
        dtype: The floating dtype of the result; float32 if None.

    Example:
        >>> accuracy = CategoricalAccuracy()
        >>> accuracy.update_state([[0, 1], [1, 0]], [[0.2, 0.8], [0.3, 0.7]])
        >>> float(accuracy.result())
        0.5
    """

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds predictions.

        Args:
            y_true: One-hot labels, the classes on the last dim.
            y_pred: Scores, of the same shape.
            sample_weight: One weight for all, or for each example.
        """
        labels, scores = _from_one_hot(y_true, y_pred, self.name)
        self._accumulate(labels == jnp.argmax(scores, axis=-1), sample_weight)


class SparseCategoricalAccuracy(Average):
    """How often the class with the highest score is the right one; labels are ints.

    Args:
        name: A name for the metric and, in front, for its states.
        dtype: The floating dtype of the result; float32 if None.

    Example:
        >>> accuracy = SparseCategoricalAccuracy()
        >>> accuracy.update_state([1, 0], [[0.2, 0.8], [0.3, 0.7]])
        >>> float(accuracy.result())
        0.5
    """

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds predictions.

        Args:
            y_true: The right class of each example.
            y_pred: Scores, the classes on the last dim.
            sample_weight: One weight for all, or for each example.
        """
        labels, scores = _with_classes(y_true, y_pred, self.name)
        self._accumulate(labels == jnp.argmax(scores, axis=-1), sample_weight)


class _TopK(Average):
    """What the two metrics of the `k` highest scores share."""

    def __init__(self, k: int = 5, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(name, dtype)
        if k < 1:
            raise MetricError(f"metric {self.name!r} got k={k}; expected at least 1.")
        self._k = k

    def _add(self, labels: jax.Array, scores: jax.Array, sample_weight: Any) -> None:
        self._accumulate(_is_in_top(labels, scores, self._k), sample_weight)


class TopKCategoricalAccuracy(_TopK):
    """How often the right class is among the `k` with the highest scores; labels are one-hot.

    Classes with the same score share a place: all of them are in, or none.

    Args:
        k: How many classes count.
        name: A name for the metric and, in front, for its states.
        dtype: The floating dtype of the result; float32 if None.

    Example:
        >>> accuracy = TopKCategoricalAccuracy(k=2)
        >>> accuracy.update_state([[0, 0, 1], [1, 0, 0]], [[0.1, 0.6, 0.3], [0.2, 0.3, 0.5]])
        >>> float(accuracy.result())
        0.5
    """

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds predictions.

        Args:
            y_true: One-hot labels, the classes on the last dim.
            y_pred: Scores, of the same shape.
            sample_weight: One weight for all, or for each example.
        """
        labels, scores = _from_one_hot(y_true, y_pred, self.name)
        self._add(labels, scores, sample_weight)


class SparseTopKCategoricalAccuracy(_TopK):
    """How often the right class is among the `k` with the highest scores; labels are ints.

    Classes with the same score share a place: all of them are in, or none.

    Args:
        k: How many classes count.
        name: A name for the metric and, in front, for its states.
        dtype: The floating dtype of the result; float32 if None.

    Example:
        >>> accuracy = SparseTopKCategoricalAccuracy(k=2)
        >>> accuracy.update_state([2, 0], [[0.1, 0.6, 0.3], [0.2, 0.3, 0.5]])
        >>> float(accuracy.result())
        0.5
    """

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds predictions.

        Args:
            y_true: The right class of each example.
            y_pred: Scores, the classes on the last dim.
            sample_weight: One weight for all, or for each example.
        """
        labels, scores = _with_classes(y_true, y_pred, self.name)
        self._add(labels, scores, sample_weight)


def _from_one_hot(y_true: Any, y_pred: Any, metric: str) -> tuple[jax.Array, jax.Array]:
    truth, scores = jnp.asarray(y_true), jnp.asarray(y_pred)
    if truth.shape != scores.shape or scores.ndim < 1:
        raise MetricError(
            f"metric {metric!r} got y_true of shape {truth.shape} and y_pred of shape "
            f"{scores.shape}. Pass one-hot labels of the shape of the scores, or use the sparse "
            "metric for labels that are ints."
        )
    return jnp.argmax(truth, axis=-1), scores


def _with_classes(y_true: Any, y_pred: Any, metric: str) -> tuple[jax.Array, jax.Array]:
    labels, scores = jnp.asarray(y_true), jnp.asarray(y_pred)
    if labels.ndim == scores.ndim and labels.ndim > 0 and labels.shape[-1] == 1:
        labels = labels[..., 0]
    if scores.ndim < 1 or labels.shape != scores.shape[:-1]:
        raise MetricError(
            f"metric {metric!r} got y_true of shape {labels.shape} and y_pred of shape "
            f"{scores.shape}. Pass one label for each row of scores, or use the metric that is not "
            "sparse for one-hot labels."
        )
    return labels.astype(jnp.int32), scores


def _is_in_top(labels: jax.Array, scores: jax.Array, k: int) -> jax.Array:
    """Whether fewer than `k` classes have a higher score than the right one."""
    is_right = jnp.arange(scores.shape[-1]) == labels[..., None]
    of_right = jnp.sum(jnp.where(is_right, scores, 0), axis=-1, keepdims=True)
    num_higher = jnp.sum(scores > of_right, axis=-1)
    return is_right.any(axis=-1) & (num_higher < k) & jnp.isfinite(of_right[..., 0])
