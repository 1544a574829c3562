"""A mirrored value of a traced replica function of which every replica has a part only."""

from __future__ import annotations

from typing import Any

import jax

from replicax.backend.mesh import ReplicaMesh
from replicax.backend.shards import ShardLayout
from replicax.jax_internals.traces import current_trace, inside_trace
from replicax.values.distributed import Mirrored, register_as_array
from replicax.values.traced import TracedMirrored


class TracedSplit(TracedMirrored):
    """What a reduction to a sharded variable gives: equal everywhere, and split over the replicas.

    Used as an array it is the whole, gathered where it was made.
    """

    __slots__ = ("_layout", "_part", "_trace")

    def __init__(self, mesh: ReplicaMesh, part: jax.Array, layout: ShardLayout) -> None:
        Mirrored.__init__(self, mesh)
        self._part = part
        self._layout = layout
        self._trace = current_trace()

    def __repr__(self) -> str:
        return f"Mirrored:{{each of {self.mesh.num_replicas} replicas has a part: {self._part!r}}}"

    @property
    def values(self) -> tuple[jax.Array, ...]:
        """The whole, for each replica of this worker."""
        return (self._replicated(),) * len(self.mesh.local_replicas)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole."""
        return self._layout.shape

    @property
    def dtype(self) -> jax.numpy.dtype:
        """The dtype of the value."""
        return self._part.dtype

    def _replicated(self, name: Any = None) -> jax.Array:
        """The whole."""
        if self._array is None:
            with inside_trace(self._trace):
                self._array = self._layout.gathered(self._part)
        return self._array


register_as_array(TracedSplit)
