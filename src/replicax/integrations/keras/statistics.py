"""Makes the statistics of layers the same on all replicas.

While training, each replica has moving averages of its own part of the batch. Evaluation and
prediction use their mean, and so does a file: what is saved evaluates as it did before.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from replicax.core.enums import VariableAggregation
from replicax.engine.functions.function import function
from replicax.integrations.keras import shares
from replicax.integrations.keras.variables import StrategyVariable, is_on_read

_programs: weakref.WeakKeyDictionary[Any, tuple[list[int], Callable[[], None]]] = (
    weakref.WeakKeyDictionary()
)


def level(model: Any, strategy: Any) -> None:
    """Gives every replica the mean of the statistics of all."""
    if strategy.num_replicas_in_sync == 1:
        return
    averaged = [v for v in model.non_trainable_variables if _is_averaged(v)]
    if not averaged:
        return
    keys = [id(variable.replicax_variable) for variable in averaged]
    found = _programs.get(model)
    if found is None or found[0] != keys:
        found = _programs[model] = (keys, _program([v.replicax_variable for v in averaged]))
    strategy.run(found[1])


def _is_averaged(variable: Any) -> bool:
    return (
        isinstance(variable, StrategyVariable)
        and is_on_read(variable)
        and variable.replicax_variable.aggregation is VariableAggregation.MEAN
    )


def _program(held: list[Any]) -> Callable[[], None]:
    def average() -> None:
        context = shares.replica_context()
        own = [variable.read_value() for variable in held]
        is_first = context.replica_id_in_sync_group == 0
        # Not the plain mean: of copies that are equal this gives exactly their value.
        first = context.all_reduce("SUM", [jnp.where(is_first, v, jnp.zeros_like(v)) for v in own])
        away = context.all_reduce("MEAN", [v - base for v, base in zip(own, first, strict=True)])
        for variable, base, mean in zip(held, first, away, strict=True):
            variable.assign((base + mean).astype(variable.dtype))

    return function(average)
