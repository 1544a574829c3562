"""Adds up gradients over several steps, so that replicas communicate once for all of them.

In replica context each replica adds its own gradients to a sync-on-read variable,
without communication; the sums are combined when the last of the steps is there.
Gradients that are reduced already, and those of cross-replica context, are added
up in variables like any other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from replicax.backend import collectives
from replicax.core.enums import ReduceOp, VariableAggregation, VariableSynchronization
from replicax.core.errors import VariableError
from replicax.strategies.base import Strategy
from replicax.variables.creation import layout_like
from replicax.variables.variable import Variable


class Accumulation:
    """The gradients of the steps since the last update.

    Args:
        name: The optimizer's name.
        steps: After how many steps there is an update.
        op: How the replicas are combined.

    Attributes:
        variables: What holds the sums, and the number of steps in them.
    """

    def __init__(self, name: str, steps: int, op: ReduceOp) -> None:
        """Nothing added yet; variables are created with the first gradients."""
        self.steps = steps
        self._name = name
        self._op = op
        self._is_local: bool | None = None
        self._sums: list[Variable] = []
        self._count: Any = None
        self._dtypes: list[Any] = []
        self._devices: Any = None

    @property
    def variables(self) -> list[Variable]:
        """What holds the sums, and the number of steps in them."""
        return [] if self._count is None else [self._count, *self._sums]

    def prepare(
        self,
        strategy: Strategy,
        devices: Any,
        gradients: Sequence[Any],
        variables: Sequence[Variable],
        *,
        local: bool,
    ) -> None:
        """Creates the variables, in cross-replica context, the first time.

        Args:
            strategy: The strategy in force.
            devices: Where non-slot state is.
            gradients: The first gradients.
            variables: What they are the gradients of.
            local: Whether every replica has a sum of its own.

        Raises:
            VariableError: If the sums are of the other kind already.
        """
        if self._is_local is not None:
            if self._is_local != local:
                kinds = ("reduced", "per-replica") if local else ("per-replica", "reduced")
                names = [variable.name for variable in variables]
                raise VariableError(
                    f"optimizer {self._name!r} accumulates {kinds[0]} gradients of {names} and got "
                    f"{kinds[1]} ones. Call apply_gradients in one way: either in the replica "
                    "function with aggregate=True, or with reduced gradients."
                )
            return
        kind: dict[str, Any] = {}
        if local:
            kind["synchronization"] = VariableSynchronization.ON_READ
            kind["aggregation"] = VariableAggregation[self._op.name]
        extended = strategy.extended
        with extended.colocate_vars_with(devices):
            count = Variable(
                np.int32(0),
                False,
                name=f"{self._name}/accumulated_steps",
                **layout_like(None, (), strategy),
            )
        sums = []
        for gradient, variable in zip(gradients, variables, strict=True):
            # A sum of a replica's own is beside the replica, wherever the variable is.
            where = contextlib.nullcontext() if local else extended.colocate_vars_with(variable)
            dtype = collectives.summing_dtype(collectives.as_mean_dtype(gradient.dtype))
            zeros = np.zeros(variable.shape, dtype)
            with where:
                name = f"{self._name}/accumulated/{variable.name}"
                layout = layout_like(variable, zeros.shape, strategy)
                sums.append(Variable(zeros, False, name=name, **kind, **layout))
        # At once: the variants of a trace, which create the same variables, all come here.
        self._dtypes = [collectives.as_mean_dtype(gradient.dtype) for gradient in gradients]
        self._devices, self._count, self._sums, self._is_local = devices, count, sums, local

    def add_local(self, context: Any, gradients: Sequence[Any], is_reduced: Sequence[bool]) -> None:
        """Adds one replica's gradients, in replica context.

        Args:
            context: The replica context.
            gradients: The replica's gradients.
            is_reduced: Which of them are the same on every replica, to be counted once.
        """
        first = context.replica_id_in_sync_group == 0 if any(is_reduced) else True
        for total, gradient, once in zip(self._sums, gradients, is_reduced, strict=True):
            if once and self._op is ReduceOp.SUM:
                gradient = jnp.where(first, gradient, jnp.zeros_like(gradient))
            total.assign_add(jnp.asarray(gradient, total.dtype))

    def add_reduced(self, strategy: Strategy, gradients: Sequence[Any]) -> None:
        """Adds reduced gradients, in cross-replica context."""
        for total, gradient in zip(self._sums, gradients, strict=True):
            value = jnp.asarray(gradient, total.dtype)
            strategy.extended.update(total, lambda t, g: t.assign_add(g), args=(value,))

    def finish_step(self, strategy: Strategy, apply: Callable[[list[Any]], None]) -> None:
        """Counts the step, in cross-replica context, and applies the mean if it was the last.

        In a trace the decision is part of the program, and the collective with it.
        """
        count = self._count.read_value() + 1
        is_last = count == self.steps
        self._set_count(strategy, jnp.where(is_last, 0, count))

        def update() -> None:
            apply(self._taken(strategy))

        if isinstance(is_last, Tracer):
            lax.cond(is_last, update, lambda: None)
        elif is_last:
            update()

    def _set_count(self, strategy: Strategy, value: Any) -> None:
        strategy.extended.update_non_slot(self._devices, self._count.assign, args=(value,))

    def _taken(self, strategy: Strategy) -> list[Any]:
        """The mean over the steps, of all replicas; the sums start again from zero."""
        if self._is_local:
            pairs = [(total, total) for total in self._sums]
            totals = strategy.extended.batch_reduce_to(self._op, pairs)
        else:
            totals = [total.read_value() for total in self._sums]
        means = [
            (jnp.asarray(total) / self.steps).astype(dtype)
            for total, dtype in zip(totals, self._dtypes, strict=True)
        ]
        for total in self._sums:
            total.assign(jnp.zeros(total.shape, total.dtype))
        return means
