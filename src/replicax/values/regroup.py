"""Merges what the replicas returned into one result, leaf by leaf.

The same object from every replica stays that object; equal Python numbers and
strings count as the same; the copies of one mirrored value become that value;
the views of one variable become that variable; anything else is a `PerReplica`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from replicax.backend.mesh import ReplicaMesh
from replicax.core import nest
from replicax.values.distributed import ComponentView, DistributedValues, Mirrored, PerReplica

_EQUAL_BY_VALUE = (bool, int, float, complex, str, bytes)

FindMirrored = Callable[[Any], Mirrored | None]


def regroup(
    results: Sequence[Any],
    mesh: ReplicaMesh,
    *,
    find_mirrored: FindMirrored,
    arguments: Collection[int] = (),
) -> Any:
    """One nest out of one nest per replica.

    Args:
        results: What each replica returned, in replica order.
        mesh: The devices of the replicas.
        find_mirrored: The mirrored value that an array is a copy of, if any.
        arguments: The ``id`` of every argument leaf: a NumPy array counts as
            "the same object" only when it was passed in.
    """
    if len(results) == 1:
        return results[0]

    def merge(leaves: tuple[Any, ...]) -> Any:
        first = leaves[0]
        if all(leaf is first for leaf in leaves):
            if isinstance(first, ComponentView):
                return first if first.container is None else first.container
            if not isinstance(first, (np.ndarray, np.generic)) or id(first) in arguments:
                return first
        elif same_python_value(leaves):
            return first
        container = _common_container(leaves, find_mirrored)
        return PerReplica(mesh, components=leaves) if container is None else container

    return nest.transpose(results, merge)


def same_python_value(leaves: Sequence[Any]) -> bool:
    """Whether all leaves are equal Python numbers or strings of one type.

    Example:
        >>> same_python_value([1, 1]), same_python_value([1, 1.0])
        (True, False)
    """
    first = leaves[0]
    kind = type(first)
    if kind not in _EQUAL_BY_VALUE:
        return False
    return all(type(leaf) is kind and (leaf == first or leaf is first) for leaf in leaves)


def _common_container(
    leaves: tuple[Any, ...], find_mirrored: FindMirrored
) -> DistributedValues | None:
    containers = [
        leaf.container if isinstance(leaf, ComponentView) else find_mirrored(leaf)
        for leaf in leaves
    ]
    first = containers[0]
    if first is None or any(container is not first for container in containers):
        return None
    return first


def select(tree: Any, replica_id: int) -> Any:
    """`tree` as one replica sees it: each distributed value replaced by its component."""
    return nest.map_leaves(
        lambda leaf: leaf.select(replica_id) if isinstance(leaf, DistributedValues) else leaf, tree
    )
