"""Keras optimizers on many replicas: gradients are summed, then every copy is updated alike.

`apply` assigns: the replicas meet, and the update happens once for all. `stateless_apply` takes
and returns values: each replica computes the same new ones from the summed gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import keras

from replicax.engine.protocols import variable_of
from replicax.integrations.keras import internals, ownership, shares
from replicax.values.distributed import Mirrored


def apply(original: Callable[..., None], optimizer: Any, grads: Any, variables: Any = None) -> None:
    """What ``optimizer.apply(grads, variables)`` does."""
    context = shares.replica_context()
    is_plain = context is None and not ownership.is_own(optimizer)
    if is_plain or shares.is_reduced() or internals.in_stateless_scope():
        original(optimizer, grads, variables)
        return
    variables = list(optimizer._trainable_variables if variables is None else variables)
    if context is None:
        _update(original, optimizer, list(grads), variables)
        return
    grads = shares.weighed_gradients(optimizer, list(grads))
    context.merge_call(_apply_once, args=(optimizer, original, grads, variables))


def stateless_apply(
    original: Callable[..., Any], optimizer: Any, state: Any, grads: Any, values: Any
) -> Any:
    """What ``optimizer.stateless_apply(state, grads, values)`` does."""
    context = None if shares.is_reduced() else shares.replica_context()
    if context is None:
        return original(optimizer, state, grads, values)
    grads = _sum(context, optimizer, shares.weighed_gradients(optimizer, list(grads)))
    with shares.reduced():
        return original(optimizer, state, grads, values)


def _sum(context: Any, optimizer: Any, grads: list[Any]) -> list[Any]:
    """The gradients of all replicas together."""
    means = [
        index
        for index, variable in enumerate(optimizer._trainable_variables)
        if getattr(variable, "overwrite_with_gradient", False)  # no gradient, but a new value
    ]
    if not means:
        return context.all_reduce("SUM", grads)
    own = [None if index in means else grad for index, grad in enumerate(grads)]
    summed = context.all_reduce("SUM", own)
    for index in means:
        summed[index] = context.all_reduce("MEAN", grads[index])
    return summed


def _apply_once(
    strategy: Any,
    optimizer: Any,
    original: Callable[..., None],
    grads: Sequence[Any],
    variables: Sequence[Any],
) -> None:
    """Updates with the gradients of all replicas, in cross-replica context."""
    pairs = [(g, variable_of(v)) for g, v in zip(grads, variables, strict=True) if g is not None]
    summed = iter(strategy.extended.batch_reduce_to("SUM", pairs))
    reduced = [None if grad is None else _as_array(next(summed)) for grad in grads]
    _update(original, optimizer, reduced, list(variables))


def _update(
    original: Callable[..., None], optimizer: Any, grads: list[Any], variables: list[Any]
) -> None:
    """Assigns the new values of weights and state, in cross-replica context.

    They are computed without assigning, where possible: an optimizer that scales the loss reads
    its state in a branch, where a variable cannot be read.
    """
    if not optimizer.built:
        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(variables)
    known = optimizer._trainable_variables
    with shares.reduced():
        if [id(v) for v in known] != [id(v) for v in variables]:
            original(optimizer, grads, variables)
            return
        state = optimizer.variables
        values, new_state = optimizer.stateless_apply(
            [v.value for v in state], grads, [v.value for v in known]
        )
    for variable, value in zip((*known, *state), (*values, *new_state), strict=True):
        variable.assign(value)


def _as_array(value: Any) -> Any:
    return value.read_value() if isinstance(value, Mirrored) else jnp.asarray(value)
