"""Scales losses so that the gradients of all replicas add up to the gradient of one device.

Gradients are summed over replicas. A loss that every replica averages over its
own share of the batch is then N times too large, and an uneven last batch is
weighted wrongly; these functions divide by the right number.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.core.enums import ReduceOp
from replicax.core.errors import ContextError, LossError
from replicax.core.weights import weight_shape
from replicax.engine.contexts import stack
from replicax.strategies import current

__all__ = ["compute_average_loss", "scale_regularization_loss"]


def compute_average_loss(
    per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None
) -> jax.Array:
    """This replica's part of the mean loss: its sum divided by the global batch size.

    Summed over replicas, the parts are the mean over all examples, and their
    gradients the gradient of that mean, however the batch was divided. The
    divisor is the number of examples even where there are weights.

    Args:
        per_example_loss: One loss for each example of this replica, on dim 0.
            Further dims are summed.
        sample_weight: One weight for all, for each example or for each value.
        global_batch_size: The number of examples on all replicas, an int. If
            None it is counted over all replicas, uneven batches included; that
            needs replica context.

    Returns:
        A scalar.

    Raises:
        LossError: If the loss is a scalar, so averaged already; or weights or
            `global_batch_size` do not fit.
        ContextError: In cross-replica context without `global_batch_size`.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> losses = strategy.distribute_batch([1.0, 2.0, 6.0])
        >>> strategy.run(compute_average_loss, args=(losses,))
        PerReplica:{
          0: Array(1., dtype=float32),
          1: Array(2., dtype=float32)
        }
    """
    losses = jnp.asarray(per_example_loss)
    if losses.ndim == 0:
        raise LossError(
            f"compute_average_loss got a scalar, {per_example_loss!r}: it seems to be averaged or "
            "summed already, and then the number of examples in it is lost. Pass the loss of each "
            "example (leave out .mean() or .sum(); reduction='none'), of shape (examples, ...)."
        )
    losses, dtype = _as_sum(losses)
    if sample_weight is not None:
        losses = losses * _expanded(sample_weight, losses).astype(losses.dtype)
    if global_batch_size is None:
        global_batch_size = _num_examples(losses.shape[0])
    else:
        _check_global_batch_size(global_batch_size)
    count = jnp.maximum(jnp.asarray(global_batch_size), 1).astype(losses.dtype)
    return (jnp.sum(losses) / count).astype(dtype)


def scale_regularization_loss(regularization_loss: Any) -> jax.Array:
    """This replica's part of a loss that depends on variables only: its sum divided by N.

    Every replica computes the same regularisation loss; without the division
    their sum would count it N times.

    Args:
        regularization_loss: A scalar, or an array of terms, which are summed.

    Returns:
        A scalar.

    Raises:
        ContextError: In cross-replica context.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> part = strategy.run(lambda: scale_regularization_loss(jnp.array([1.0, 2.0])))
        >>> strategy.reduce("SUM", part, axis=None)
        Array(3., dtype=float32)
    """
    _require_replica("scale_regularization_loss", "Call it in the function passed to run.")
    total, dtype = _as_sum(jnp.asarray(regularization_loss))
    return (jnp.sum(total) / current.get_strategy().num_replicas_in_sync).astype(dtype)


def _as_sum(losses: jax.Array) -> tuple[jax.Array, Any]:
    """The losses in the type in which they are added, and the dtype of the result."""
    dtype = losses.dtype if jnp.issubdtype(losses.dtype, jnp.floating) else jnp.result_type(float)
    return losses.astype(jnp.promote_types(dtype, jnp.float32)), dtype


def _num_examples(local: int) -> Any:
    """The examples of all replicas; their own numbers may differ."""
    _require_replica(
        "compute_average_loss",
        "Call it in the function passed to run, where the examples of all replicas are counted, or "
        "pass global_batch_size.",
    )

    def total(count: Any) -> Any:
        return current.get_strategy().reduce(ReduceOp.SUM, count, axis=None)

    # Meeting with a Python int: where all replicas have as many, nothing is communicated.
    return current.get_replica_context()._together("compute_average_loss", total, (local,))


def _require_replica(call: str, then: str) -> None:
    if stack.in_cross_replica_context():
        raise ContextError(
            f"{call} was called inside {stack.describe()}, in cross-replica context, where there "
            f"is no replica whose part of the loss it could give. {then}"
        )


def _expanded(sample_weight: Any, losses: jax.Array) -> jax.Array:
    weight = jnp.asarray(sample_weight)
    shape = weight_shape(losses.shape, weight.shape)
    if shape is None:
        raise LossError(
            f"compute_average_loss got sample_weight of shape {weight.shape} for losses of shape "
            f"{losses.shape}. Pass one weight for all, one for each example, or one for each value."
        )
    return weight.reshape(shape)


def _check_global_batch_size(size: Any) -> None:
    is_integer = not isinstance(size, bool) and jnp.issubdtype(jnp.result_type(size), jnp.integer)
    if np.ndim(size) or not is_integer:
        raise LossError(
            f"compute_average_loss got global_batch_size={size!r}; expected the number of examples "
            "on all replicas, an int."
        )
    if isinstance(size, (int, np.integer)) and size < 1:
        raise LossError(
            f"compute_average_loss got global_batch_size={size}; expected at least 1. Leave it out "
            "to have the examples counted."
        )
