"""Maps a function over the replicas' parts of arrays, as one ``shard_map``.

Arrays without elements stay out of it: where nothing else goes in, XLA's import of the program
fails. There is nothing to bring, so each replica makes its part of them itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from replicax.backend.mesh import ReplicaMesh
from replicax.core.names import REPLICA_AXIS


def map_replicas(
    fn: Callable[[list[Any]], Any],
    values: Sequence[Any],
    specs: Sequence[PartitionSpec],
    *,
    mesh: ReplicaMesh,
    out_specs: Any,
) -> Any:
    """What ``fn(parts)`` gives on every replica, where `parts` are the replica's of `values`.

    Args:
        fn: The function; it gets a list.
        values: Arrays over all replicas.
        specs: How each of them is divided.
        mesh: The devices of the replicas.
        out_specs: How the results make up arrays.
    """
    empty = {
        index: jax.ShapeDtypeStruct(_part_shape(value.shape, spec, mesh), value.dtype)
        for index, (value, spec) in enumerate(zip(values, specs, strict=True))
        if not np.size(value) and not jnp.issubdtype(value.dtype, jax.dtypes.extended)
    }

    def of_parts(given: list[Any]) -> Any:
        rest = iter(given)
        return fn(
            [
                jnp.zeros(empty[index].shape, empty[index].dtype) if index in empty else next(rest)
                for index in range(len(values))
            ]
        )

    brought = [index for index in range(len(values)) if index not in empty]
    mapped = jax.shard_map(
        of_parts,
        mesh=mesh.mesh,
        in_specs=([specs[index] for index in brought],),
        out_specs=out_specs,
        axis_names={REPLICA_AXIS},
        check_vma=False,
    )
    return mapped([values[index] for index in brought])


def _part_shape(shape: tuple[int, ...], spec: PartitionSpec, mesh: ReplicaMesh) -> tuple[int, ...]:
    if REPLICA_AXIS not in spec:
        return shape
    return (shape[0] // mesh.num_replicas, *shape[1:])
