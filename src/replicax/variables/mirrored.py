"""Mirrored variables: equal copies, every write goes to all of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from replicax.backend import collectives
from replicax.core.enums import ReduceOp, VariableAggregation
from replicax.engine.contexts import stack
from replicax.engine.storage import exclusively
from replicax.engine.trace.frame import Frame, current_frame
from replicax.values.consistency import require_same
from replicax.values.distributed import register_as_array
from replicax.values.reduce import first_component, reduce_leaf
from replicax.values.traced import TracedPerReplica
from replicax.variables.conversion import check_dtype, converted
from replicax.variables.distributed import (
    DistributedVariable,
    require_no_copy_drift,
    require_same_copies,
)
from replicax.variables.variable import COMBINES


@register_as_array
class MirroredVariable(DistributedVariable):
    """A variable whose copies are kept equal (``synchronization=ON_WRITE``).

    An assignment in a replica is combined over all replicas by the aggregation
    and then reaches every copy.
    """

    __slots__ = ()

    def _read_traced(self, frame: Frame) -> Any:
        return self._storage.laid_out(frame.read(self._storage))

    def _read_copy(self, index: int) -> Any:
        """One copy in a trace: all are equal there."""
        del index
        frame = current_frame()
        assert frame is not None
        return self._read_traced(frame)

    def _read_concrete(self) -> jax.Array:
        copy_id = self._copy_id()
        entry = stack.top()
        if copy_id is not None and entry is not None and entry.update is not None:
            pending = entry.update.pending(self._storage, copy_id)
            if pending is not None:
                return pending
        return self._storage.component(copy_id or 0)

    def _apply(self, method: str, value: Any) -> None:
        entry = stack.top()
        if entry is not None and entry.mode is stack.Mode.REPLICA:
            if entry.strategy is self._strategy:
                self._apply_in_replica(entry.replica_context, method, value)
                return
        elif entry is not None and entry.update is not None and entry.copy_id is not None:
            require_same_copies(self, entry.update, method)
            getattr(self.values[entry.copy_id], method)(value)
            return
        self._apply_to_all(method, converted(value, self._storage, method))

    def _apply_in_replica(self, context: Any, method: str, value: Any) -> None:
        if self._aggregation is VariableAggregation.NONE and self._num_replicas > 1:
            require_no_copy_drift(self, method)
        variable, value = self, converted(value, self._storage, method)

        def apply(value: Any) -> None:
            variable._apply_to_all(method, variable._combined(value, method))

        context._together(f"{method} of variable {self.name!r}", apply, (value,))

    @property
    def _num_replicas(self) -> int:
        return self._extended.mesh.num_replicas

    def _combined(self, value: Any, method: str) -> Any:
        """The values of all replicas as one, by the aggregation."""
        mesh = self._extended.mesh
        if self._num_replicas == 1 or self._aggregation is VariableAggregation.NONE:
            return value
        if self._aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            if isinstance(value, TracedPerReplica):
                return collectives.from_first_replica(value._local)
            return first_component(value)
        op = ReduceOp.parse(self._aggregation)
        reduced = reduce_leaf(op, value, None, mesh, self._extended._reduction)
        check_dtype(reduced.dtype, self._storage, method)
        return reduced.astype(self._storage.dtype)

    def _apply_to_all(self, method: str, value: Any) -> None:
        storage = self._storage
        frame = current_frame()
        if frame is not None:
            value = jnp.asarray(value)
            if method != "assign":
                value = COMBINES[method](frame.read(storage), value).astype(storage.dtype)
            frame.write(storage, value)
            return
        # Where others wait for this one: not while it keeps them from launching.
        require_same(value, f"{method} of variable {self.name!r}", storage.mesh)
        with exclusively():
            if method != "assign":
                value = COMBINES[method](storage.component(0), value).astype(storage.dtype)
            storage.set_value(value)
