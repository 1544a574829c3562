"""How much of a global batch a replica has, and what follows for losses and gradients.

Keras computes means over what it sees, which is one replica's part of the batch. In a step of
`fit` or `evaluate` the loss of each replica is weighed by its share of the examples, so that the
gradients of all replicas add up to that of the whole batch. The loss is weighed and not the
gradient: a layer that communicates in the forward pass hands gradients to other replicas.
A sum is not a mean, and a masked or weighted mean divides by something else than the number of
examples; `divisor_of_mask` and its like make up for that.

In a custom loop nobody weighs: there a Keras loss is the replica's part of the mean, and the
parts of all replicas add up, as with ``compute_average_loss``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import keras

from replicax.core.errors import ContextError
from replicax.engine.contexts.stack import has_strategy
from replicax.losses import compute_average_loss
from replicax.strategies.current import get_replica_context


@dataclasses.dataclass(slots=True)
class ReplicaShare:
    """One replica's share of the batch of a step.

    Attributes:
        rows: How many examples the replica has.
        total: How many there are on all replicas.
        weighing: Names of the optimizers whose ``scale_loss`` weighed their loss, by their ids.
    """

    rows: int
    total: int
    weighing: dict[int, str] = dataclasses.field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether it has no examples, and computes with a row lent to it, which counts nothing."""
        return self.rows == 0

    @property
    def weight(self) -> float:
        """What to multiply a mean over the replica's examples by."""
        return self.rows / max(self.total, 1)


class _ThreadState(threading.local):
    share: ReplicaShare | None = None
    is_reduced: bool = False


_local = _ThreadState()


@contextlib.contextmanager
def of_step(share: ReplicaShare) -> Iterator[ReplicaShare]:
    """Makes `share` the one of the step that this thread runs."""
    outer, _local.share = _local.share, share
    try:
        yield share
    finally:
        _local.share = outer


def replica_context() -> Any:
    """The replica that code is in, if a strategy has put it there; else None."""
    return get_replica_context() if has_strategy() else None


def is_one_of_many() -> bool:
    """Whether other replicas have other parts of the batch."""
    context = replica_context()
    return context is not None and context.num_replicas_in_sync > 1


# -- gradients --------------------------------------------------------------------------------


def weighed_loss(optimizer: Any, loss: Any) -> Any:
    """The loss that `optimizer` minimises in a step, weighed by the replica's share.

    Elsewhere the loss as it is.
    """
    share = _local.share
    if share is None or not is_one_of_many():
        return loss
    share.weighing[id(optimizer)] = optimizer.name
    return loss * share.weight


def weighed_gradients(optimizer: Any, gradients: list[Any]) -> list[Any]:
    """The gradients of a step whose loss nobody has weighed, weighed instead of it.

    Raises:
        ContextError: If another optimizer has weighed a loss, and this one has not: whether these
            are gradients of that loss, or of one of its own, cannot be told.
    """
    share = _local.share
    if share is None or not is_one_of_many() or id(optimizer) in share.weighing:
        return gradients
    if share.weighing:
        others = " and ".join(repr(name) for name in share.weighing.values())
        raise ContextError(
            f"optimizer {optimizer.name!r} applies gradients in a step where only {others} called "
            "scale_loss, which weighs a loss by the replica's part of the batch. Call scale_loss "
            "of every optimizer that has a loss of its own, or of none."
        )
    return [None if g is None else g * share.weight for g in gradients]


@contextlib.contextmanager
def reduced() -> Iterator[None]:
    """Inside, gradients are those of all replicas together."""
    outer, _local.is_reduced = _local.is_reduced, True
    try:
        yield
    finally:
        _local.is_reduced = outer


def is_reduced() -> bool:
    """Whether gradients are already those of all replicas together."""
    return _local.is_reduced


# -- losses -----------------------------------------------------------------------------------


def reduce_values(original: Any, values: Any, sample_weight: Any, reduction: Any) -> Any:
    """What ``reduce_values`` of Keras's losses does, for a part of the batch."""
    if reduction in (None, "none") or tuple(values.shape) == () or not is_one_of_many():
        return original(values, sample_weight, reduction)
    share = _local.share
    if reduction == "sum":
        return jnp.sum(values) * _whole(share)
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        divisor = _over_all(jnp.sum(sample_weight)).astype(values.dtype)
        return jnp.asarray(keras.ops.divide_no_nan(jnp.sum(values), divisor)) * _whole(share)
    if share is not None:
        return original(values, sample_weight, reduction)
    rest = 1
    for size in values.shape[1:]:
        rest *= size
    return (compute_average_loss(values) / max(rest, 1)).astype(values.dtype)


def apply_mask(original: Any, sample_weight: Any, mask: Any, dtype: Any, reduction: Any) -> Any:
    """What ``apply_mask`` of Keras's losses does, for a part of the batch."""
    if mask is None or reduction not in ("mean", "sum_over_batch_size") or not is_one_of_many():
        return original(sample_weight, mask, dtype, reduction)
    # Keras: total / valid for what counts, of the part. The valid ones of all parts divide.
    valid = jnp.sum(jnp.asarray(mask, dtype))
    everywhere = _over_all(valid).astype(dtype)
    weight = original(sample_weight, mask, dtype, reduction)
    share = _local.share
    if share is None:  # the mean over the part will be divided by the size of the whole
        sizes = _over_all(jnp.asarray(mask.size, "float32")) / max(mask.size, 1)
        return weight * keras.ops.divide_no_nan(valid, everywhere) * sizes.astype(dtype)
    return weight * keras.ops.divide_no_nan(valid, everywhere) * _whole(share)


def _whole(share: ReplicaShare | None) -> float:
    """Undoes the weight that the loss of the step is going to get."""
    return 1.0 if share is None or share.is_empty else share.total / share.rows


def _over_all(value: Any) -> Any:
    """The sum over all replicas, of which one without examples adds nothing."""
    share = _local.share
    if share is not None and share.is_empty:
        value = jnp.zeros_like(value)
    return replica_context().all_reduce("SUM", value)
