"""An ordinary variable: one copy, no strategy."""

from __future__ import annotations

from typing import Any

import jax

from replicax.context import stack
from replicax.core.errors import VariableError
from replicax.execution.frame import Frame, current_frame
from replicax.values.distributed import register_as_array
from replicax.variables.conversion import converted
from replicax.variables.storage import exclusively
from replicax.variables.variable import COMBINES, Variable


@register_as_array
class PlainVariable(Variable):
    """A variable created outside every scope, or by a strategy with a single device."""

    __slots__ = ()

    def _read_traced(self, frame: Frame) -> Any:
        return frame.read(self._storage)

    def _read_concrete(self) -> jax.Array:
        return self._storage.hand_out()

    def _apply(self, method: str, value: Any) -> None:
        entry = stack.top()
        if entry is not None and entry.mode is stack.Mode.REPLICA:
            replicas = entry.strategy.num_replicas_in_sync
            if replicas > 1:
                raise VariableError(
                    f"{method} of variable {self.name!r} inside run on {replicas} replicas: it was "
                    "created outside the strategy's scope and has one copy, so every replica "
                    "would update it. Create it inside `with strategy.scope():`."
                )
        storage = self._storage
        value = converted(value, storage, method)
        frame = current_frame()
        with exclusively():
            if method != "assign":
                old = frame.read(storage) if frame is not None else storage.live_array()
                value = COMBINES[method](old, value).astype(storage.dtype)
            if frame is not None:
                frame.write(storage, jax.numpy.asarray(value))
            elif method == "assign":
                storage.set_value(value)
            else:
                storage.set(value)  # just computed: nobody else has it
