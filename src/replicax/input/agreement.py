"""Brings together what the workers know of a step: the shapes of the parts of all replicas.

Where each worker reads a stream of its own, it knows the parts of its own replicas only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from replicax.core import nest
from replicax.values.distributed import PerReplica


def shapes_here(value: Any) -> list[Any]:
    """For each leaf the shapes of this worker's parts; a plain value for JSON."""
    return [
        [list(np.shape(part)) for part in leaf.values] if isinstance(leaf, PerReplica) else None
        for leaf in nest.flatten(value)[0]
    ]


def with_shapes(value: Any, shapes_of_workers: Sequence[list[Any]]) -> Any:
    """`value` with the true shapes of all replicas, given `shapes_here` of every worker."""
    leaves, structure = nest.flatten(value)
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, PerReplica):
            shapes = [tuple(shape) for rows in shapes_of_workers for shape in rows[index]]
            leaves[index] = leaf._with_shapes(shapes)
    return nest.unflatten(structure, leaves)
