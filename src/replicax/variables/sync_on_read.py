"""Sync-on-read variables: independent copies, combined when read across replicas."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from replicax.backend import collectives, placement
from replicax.backend.mesh import ReplicaMesh
from replicax.core.enums import ReduceOp, VariableAggregation
from replicax.core.errors import VariableError
from replicax.core.names import REPLICA_AXIS
from replicax.engine.contexts import stack
from replicax.engine.storage import exclusively
from replicax.engine.trace.frame import Frame, current_frame
from replicax.values.consistency import require_same
from replicax.values.distributed import PerReplica, register_as_array
from replicax.values.reduce import first_component, reduce_leaf
from replicax.values.traced import TracedPerReplica, gather_equal_components
from replicax.variables.conversion import converted
from replicax.variables.distributed import DistributedVariable, require_same_copies
from replicax.variables.variable import COMBINES


@register_as_array
class SyncOnReadVariable(DistributedVariable):
    """A variable whose copies live their own lives (``synchronization=ON_READ``).

    Replicas read and write their own copy without communication; a read across
    replicas combines the copies by the aggregation.
    """

    __slots__ = ()

    # -- reading -----------------------------------------------------------------------------

    def _read_traced(self, frame: Frame) -> Any:
        local = self._storage.laid_out(frame.read(self._storage))
        if not frame.in_replica:
            return self._aggregated_storage(local)
        entry = stack.top()
        if entry is not None and entry.mode is stack.Mode.MERGE:
            return self._aggregated(self._traced_copies(local), local)
        return local

    def _read_copy(self, index: int) -> Any:
        """One copy in a trace."""
        frame = current_frame()
        assert frame is not None
        if frame.in_replica:
            return self._traced_copies(frame.read(self._storage)).values[index]
        return collectives.on_all_devices(frame.read(self._storage), self._mesh)[index]

    def _read_concrete(self) -> jax.Array:
        copy_id = self._copy_id()
        if copy_id is None:
            with exclusively():  # a step must not take the copies before they are combined
                return self._aggregated_storage(self._whole_copies())
        entry = stack.top()
        if entry is not None and entry.update is not None:
            pending = entry.update.pending(self._storage, copy_id)
            if pending is not None:
                return pending
        return self._storage.component(copy_id)

    def _as_components(self) -> PerReplica:
        """The copies, in cross-replica context."""
        self._storage.require_width("a reduction or gathering")
        frame = current_frame()
        mesh, shape = self._mesh, self.shape
        shapes = [shape] * mesh.num_replicas
        if frame is None:
            return PerReplica(mesh, components=self._storage.components(), shapes=shapes)
        array = frame.read(self._storage)
        if frame.in_replica:
            return self._traced_copies(array)
        packed = array.reshape((mesh.num_replicas * shape[0], *shape[1:])) if shape else array
        return PerReplica(mesh, packed=packed, shapes=shapes)

    def _traced_copies(self, local: Any) -> TracedPerReplica:
        mesh = self._mesh
        return TracedPerReplica(
            mesh, local, lambda value: gather_equal_components(value, mesh.num_replicas)
        )

    @property
    def _mesh(self) -> ReplicaMesh:
        mesh = self._storage.mesh
        assert mesh is not None
        return mesh

    def _whole_copies(self) -> jax.Array:
        """The copies with the replica dim in front, each whole on its logical devices."""
        storage = self._storage
        if storage.spec is None:
            return storage.live_array()
        copies = [copy.reshape((1, *storage.shape)) for copy in storage.components()]
        return placement.assemble(copies, self._mesh)

    def _aggregated_storage(self, array: Any) -> Any:
        """The aggregate of all copies, given the array with the replica dim in front."""
        if self._aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            if isinstance(array, Tracer):
                return self._first_copy(array)
            return first_component(self._as_components())
        shapes = [(1, *self.shape)] * self._mesh.num_replicas
        copies = PerReplica(self._mesh, packed=array, shapes=shapes)
        return self._aggregated(copies, array).reshape(self.shape)

    def _first_copy(self, array: Any) -> Any:
        """Replica 0's copy in a whole program, bit by bit, given all of them."""
        if self._mesh.num_replicas == 1:
            return array[0]
        choose = collectives.per_replica_map(
            lambda own: collectives.from_first_replica(own[0]), self._mesh, replicated_out=True
        )
        return choose(array)

    def _aggregated(self, copies: PerReplica, local: Any) -> Any:
        if self._aggregation is VariableAggregation.NONE:
            raise VariableError(
                f"variable {self.name!r} has synchronization=ON_READ and aggregation=NONE, so its "
                f"copies cannot be combined into one value in {stack.describe()}. Read it inside "
                "run, look at strategy.experimental_local_results(v), or create it with an "
                "aggregation."
            )
        if self._aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            return collectives.from_first_replica(local)
        op = ReduceOp.parse(self._aggregation)
        reduced = reduce_leaf(op, copies, None, self._mesh, self._extended._reduction)
        return reduced.astype(self._storage.dtype)

    # -- assigning ---------------------------------------------------------------------------

    def _apply(self, method: str, value: Any) -> None:
        entry = stack.top()
        in_replica = entry is not None and entry.mode is stack.Mode.REPLICA
        if entry is not None and entry.update is not None and entry.copy_id is not None:
            require_same_copies(self, entry.update, method)
            getattr(self.values[entry.copy_id], method)(value)
        elif (in_replica and entry is not None and entry.strategy is self._strategy) or (
            entry is not None and entry.mode is stack.Mode.UPDATE and current_frame() is not None
        ):
            self._apply_to_own_copy(method, value)
        else:
            self._apply_across_replicas(method, value)

    def _apply_to_own_copy(self, method: str, value: Any) -> None:
        storage = self._storage
        value = converted(value, storage, method)
        frame = current_frame()
        if frame is not None:
            old = frame.read(storage) if method != "assign" else None
            frame.write(storage, jnp.asarray(COMBINES[method](old, value)).astype(storage.dtype))
            return
        copy_id = self._copy_id()
        assert copy_id is not None
        with exclusively():
            copies = storage.components()
            new = COMBINES[method](copies[copy_id], value)
            copies[copy_id] = jnp.asarray(new).astype(storage.dtype)
            storage.set_components(copies)

    def _apply_across_replicas(self, method: str, value: Any) -> None:
        if method != "assign":
            raise VariableError(
                f"{method} of variable {self.name!r} in cross-replica context: it has "
                "synchronization=ON_READ, and it is not defined which copy should change. Call "
                f"{method} inside run, or assign the whole value."
            )
        storage = self._storage
        value = converted(value, storage, method)
        frame = current_frame()
        if frame is None:
            require_same(value, f"{method} of variable {self.name!r}", self._mesh)
        copies = self._divided(value)
        if frame is None:
            local = self._mesh.local_replicas
            storage.set_components(copies[local.start : local.stop])
        elif frame.in_replica:
            index = lax.axis_index(REPLICA_AXIS)
            frame.write(storage, jnp.where(index == 0, copies[0], copies[-1]))
        else:
            frame.write(storage, jnp.stack(copies))

    def _divided(self, value: Any) -> list[Any]:
        """What each copy must hold so that a read gives exactly `value`."""
        num_copies = self._mesh.num_replicas
        if self._aggregation is not VariableAggregation.SUM or num_copies == 1:
            return [jnp.asarray(value)] * num_copies
        first, other = divide_exactly(jnp.asarray(value), num_copies)
        return [first] + [other] * (num_copies - 1)


@functools.partial(jax.jit, static_argnums=1)  # a dozen operations, each time metrics are reset
def divide_exactly(total: jax.Array, parts: int) -> tuple[jax.Array, jax.Array]:
    """A first part, and one for all others, whose sum in any order is exactly `total`.

    Example:
        >>> first, other = divide_exactly(jnp.int32(8), 3)
        >>> int(first), int(other)
        (4, 2)
    """
    if jnp.issubdtype(total.dtype, jnp.integer):
        other = total // parts
        return total - other * (parts - 1), other
    if not jnp.issubdtype(total.dtype, jnp.floating):
        return total, jnp.zeros_like(total)
    info = jnp.finfo(total.dtype)
    # With a few bits fewer than the type has, every partial sum is a multiple of the last bit of
    # `total` and no larger than it: nothing is rounded.
    mantissa = info.nmant - math.ceil(math.log2(parts)) - 1
    if mantissa < 1:
        return total, jnp.zeros_like(total)
    other = lax.reduce_precision(total / np.asarray(parts, total.dtype), info.nexp, mantissa)
    first = total - other * np.asarray(parts - 1, total.dtype)
    finite = jnp.isfinite(total)
    return jnp.where(finite, first, total), jnp.where(finite, other, total)
