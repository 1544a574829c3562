"""Annotations of values inside a replica that spans several logical devices.

They say where the pieces of a value live while a compiled step computes with it; its value
stays what it is. XLA places what is not annotated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.core import Tracer
from jax.sharding import PartitionSpec

from replicax.backend import partition
from replicax.backend.mesh import ReplicaMesh
from replicax.core import nest
from replicax.execution.frame import current_frame


class LogicalDeviceVerbs:
    """The methods of `Strategy` for replicas that span several logical devices."""

    extended: Any

    def experimental_split_to_logical_devices(
        self, tensor: Any, partition_dimensions: Sequence[int]
    ) -> Any:
        """`tensor`, split among the logical devices of its replica in a compiled ``run``.

        What is computed from it is partitioned accordingly, as far as XLA can. In an eager
        ``run`` it is only checked.

        Args:
            tensor: A value of the replica.
            partition_dimensions: Into how many pieces each dim is cut; their product is the
                number of logical devices of a replica.

        Returns:
            `tensor`, with its layout.

        Raises:
            ValueError: If there is not one number for each dim, if their product is not the
                number of logical devices, or if a dim cannot be divided by its number.

        Example:
            >>> import jax.numpy as jnp
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy(logical_devices=4)
            >>> @rx.function
            ... def step(x):
            ...     x = strategy.experimental_split_to_logical_devices(x, [2, 2])
            ...     return jnp.sum(x * x)
            >>> result = strategy.run(step, args=(jnp.ones((4, 6)),))
            >>> strategy.experimental_local_results(result)
            (Array(24., dtype=float32), Array(24., dtype=float32))
        """
        mesh = self.extended.mesh
        pieces = partition.checked_pieces(partition_dimensions, mesh)
        return nest.map_leaves(lambda leaf: _split(leaf, pieces, mesh), tensor)

    def experimental_replicate_to_logical_devices(self, tensor: Any) -> Any:
        """`tensor`, whole on every logical device of its replica in a compiled ``run``.

        Args:
            tensor: A value of the replica.

        Returns:
            `tensor`, with its layout.
        """
        mesh = self.extended.mesh
        return nest.map_leaves(lambda leaf: _constrained(leaf, PartitionSpec(), mesh), tensor)

    def experimental_assign_to_logical_device(self, tensor: Any, logical_device_id: int) -> Any:
        """`tensor`, after a check of the id: validated, not placed.

        XLA places the operation that makes it, as any other: it has no layout that is on one
        device of a partitioned program only.

        Args:
            tensor: A value of the replica.
            logical_device_id: The number of a logical device of the replica.

        Returns:
            `tensor`.

        Raises:
            ValueError: If there is no logical device of that number.
        """
        count = self.extended.mesh.num_logical_devices
        is_int = isinstance(logical_device_id, int) and not isinstance(logical_device_id, bool)
        if not is_int or not 0 <= logical_device_id < count:
            raise ValueError(
                f"logical_device_id is {logical_device_id!r}; a replica has the logical devices 0 "
                f"to {count - 1} here."
                if count > 1
                else f"logical_device_id is {logical_device_id!r}; a replica has one logical "
                "device here, 0."
            )
        return tensor


def _split(leaf: Any, pieces: list[int], mesh: ReplicaMesh) -> Any:
    partition.require_fit(pieces, jax.numpy.shape(leaf), "the tensor")
    return _constrained(leaf, partition.spec_of_pieces(pieces, mesh), mesh)


def _constrained(leaf: Any, spec: PartitionSpec, mesh: ReplicaMesh) -> Any:
    frame = current_frame()
    is_replica = frame is not None and frame.in_replica
    if mesh.num_logical_devices == 1 or not is_replica or not isinstance(leaf, Tracer):
        return leaf
    return lax.with_sharding_constraint(leaf, spec)
