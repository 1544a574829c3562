"""Brings labels, predictions and weights of one batch to shapes that meet element by element."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from replicax.core.errors import MetricError
from replicax.core.weights import weight_shape


def paired(y_true: Any, y_pred: Any, metric: str) -> tuple[jax.Array, jax.Array]:
    """Labels and predictions of the same shape; a last dim of 1 too many is dropped.

    Raises:
        MetricError: If the shapes differ; they are never broadcast.
    """
    truth, predictions = jnp.asarray(y_true), jnp.asarray(y_pred)
    if truth.ndim == predictions.ndim + 1 and truth.shape[-1] == 1:
        truth = truth[..., 0]
    elif predictions.ndim == truth.ndim + 1 and predictions.shape[-1] == 1:
        predictions = predictions[..., 0]
    if truth.shape != predictions.shape:
        raise MetricError(
            f"metric {metric!r} got y_true of shape {truth.shape} and y_pred of shape "
            f"{predictions.shape}. Pass one prediction for each label."
        )
    return truth, predictions


def weights_of(values: jax.Array, sample_weight: Any, metric: str, dtype: Any) -> jax.Array:
    """The weight of every value, of the shape of `values`; ones if `sample_weight` is None.

    Raises:
        MetricError: If the weights are not one for all, one per example or one per value.
    """
    if sample_weight is None:
        return jnp.ones(values.shape, dtype)
    weight = jnp.asarray(sample_weight).astype(dtype)
    shape = weight_shape(values.shape, weight.shape)
    if shape is None:
        raise MetricError(
            f"metric {metric!r} got sample_weight of shape {weight.shape} for values of shape "
            f"{values.shape}. Pass one weight for all, one for each example, or one for each value."
        )
    return jnp.broadcast_to(weight.reshape(shape), values.shape)
