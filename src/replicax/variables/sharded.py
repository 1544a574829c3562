"""Sharded variables: one value, split over the replicas.

They mean what mirrored variables mean. What differs is where the value is: a replica stores its
part only, a read in a compiled replica function gathers the whole, and an assignment keeps the
replica's part of what was assigned. Code that can do with parts (an update of every element by
itself) reads and writes those.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.backend import placement
from replicax.backend.runahead import RUN_AHEAD
from replicax.backend.shards import ShardLayout
from replicax.core.errors import ContextError
from replicax.engine.storage import stored
from replicax.engine.trace.frame import Frame, current_frame
from replicax.engine.trace.overrides import drop_override
from replicax.values.distributed import ComponentView, register_as_array
from replicax.values.operators import AssignableOperators
from replicax.variables.conversion import converted
from replicax.variables.mirrored import MirroredVariable
from replicax.variables.variable import COMBINES, describe_component


@register_as_array
class ShardedVariable(MirroredVariable):
    """A variable of which every replica stores an equal part.

    Reads give the whole value everywhere; assignments in a replica are combined by
    the aggregation, as for mirrored variables.
    """

    __slots__ = ()

    @property
    def _layout(self) -> ShardLayout:
        """How it is split."""
        layout = self._storage.layout
        assert layout is not None
        return layout

    @property
    def _bounds(self) -> tuple[tuple[int, int], ...]:
        """Which elements of the whole each replica of this worker stores."""
        mesh = self._storage.mesh
        assert mesh is not None
        return self._layout.bounds[mesh.local_replicas.start : mesh.local_replicas.stop]

    @property
    def _parts(self) -> tuple[jax.Array, ...]:
        """What each replica of this worker stores, as a row, without what fills up the last."""
        with RUN_AHEAD.lock:  # a step must not take the parts while they are copied
            rows = placement.parts_of(self._storage.live_array(), self._storage.mesh)
            return tuple(
                jnp.asarray(np.array(row)[0, : stop - start])
                for row, (start, stop) in zip(rows, self._bounds, strict=True)
            )

    def __repr__(self) -> str:
        count, mesh = self._layout.num_parts, self._storage.mesh
        title = f"{type(self).__name__} in {count} parts"
        if mesh is None or not mesh.spans_workers:
            return f"{title}: {describe_component(self, self._show)}"
        # The whole would need all workers, and a repr may be asked for by one.
        first, last = self._bounds[0][0], self._bounds[-1][1]
        shown = describe_component(self, lambda: np.concatenate(self._parts))
        return f"{title}, of which elements {first} to {last} are here: {shown}"

    # -- the whole ---------------------------------------------------------------------------

    def _read_traced(self, frame: Frame) -> Any:
        layout = self._layout
        return frame.derived(self._storage, layout.gathered if frame.in_replica else layout.joined)

    def _read_copy(self, index: int) -> Any:
        """The whole value in a trace."""
        del index
        frame = current_frame()
        assert frame is not None
        return self._read_traced(frame)

    def _apply_to_all(self, method: str, value: Any) -> None:
        frame = current_frame()
        if frame is None:
            super()._apply_to_all(method, value)
            return
        self._write(frame, method, stored(self._storage, value, frame))

    def _write(self, frame: Frame, method: str, part: jax.Array) -> None:
        if method != "assign":
            part = COMBINES[method](frame.read(self._storage), part).astype(self.dtype)
        frame.write(self._storage, part)

    # -- the parts, in a compiled replica function -------------------------------------------

    def _read_part(self) -> jax.Array:
        """The replica's part."""
        return self._replica_frame("read_part").read(self._storage)

    def _assign_part(self, part: jax.Array, method: str = "assign") -> None:
        """Assigns the replica's part; the caller knows that all replicas assign theirs."""
        drop_override(self)
        self._write(self._replica_frame("assign_part"), method, part)

    def _replica_frame(self, call: str) -> Frame:
        frame = current_frame()
        if frame is None or not frame.in_replica:
            raise ContextError(
                f"{call} of variable {self.name!r} outside of a compiled replica function, where "
                "there is no part of a replica's own. Read and assign the whole value."
            )
        return frame


@register_as_array
class VariablePart(AssignableOperators, ComponentView):
    """A replica's part of a sharded variable, for an update that treats every element alike."""

    __slots__ = ("__weakref__", "_variable")

    def __init__(self, variable: ShardedVariable) -> None:
        """The part of `variable` that belongs to the replica that executes the program."""
        self._variable = variable

    @property
    def _owner(self) -> ShardedVariable:
        """The variable."""
        return self._variable

    @property
    def name(self) -> str:
        """The variable's name."""
        return self._variable.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the part: a row of elements."""
        return (self._variable._layout.part_size,)

    @property
    def dtype(self) -> Any:
        """The variable's dtype."""
        return self._variable.dtype

    @property
    def value(self) -> jax.Array:
        """The current value of the part."""
        return self.read_value()

    def read_value(self) -> jax.Array:
        """The current value of the part."""
        return self._variable._read_part()

    def assign(self, value: Any) -> VariablePart:
        """Replaces the part.

        Args:
            value: The new value, a row of elements.

        Returns:
            This part.
        """
        return self._assign("assign", value)

    def assign_add(self, delta: Any) -> VariablePart:
        """Adds to the part.

        Args:
            delta: What to add, a row of elements.

        Returns:
            This part.
        """
        return self._assign("assign_add", delta)

    def assign_sub(self, delta: Any) -> VariablePart:
        """Subtracts from the part.

        Args:
            delta: What to subtract, a row of elements.

        Returns:
            This part.
        """
        return self._assign("assign_sub", delta)

    def _assign(self, method: str, value: Any) -> VariablePart:
        self._variable._assign_part(jnp.asarray(converted(value, self, method)), method)
        return self

    def __repr__(self) -> str:
        return f"<part of rx.Variable {self.name!r} shape={self.shape} dtype={self.dtype}>"
