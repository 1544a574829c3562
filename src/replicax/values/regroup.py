"""Merges what the replicas returned into one result, leaf by leaf.

The same object from every replica stays that object; equal Python numbers and
strings count as the same; the copies of one mirrored value become that value;
the views of one variable become that variable; anything else is a `PerReplica`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

import jax
import numpy as np

from replicax.backend import placement, workers
from replicax.backend.mesh import ReplicaMesh
from replicax.core import nest
from replicax.core.errors import WorkersDifferError
from replicax.core.exact import exact
from replicax.values.distributed import ComponentView, DistributedValues, Mirrored, PerReplica

_EQUAL_BY_VALUE = (bool, int, float, complex, str, bytes)

FindMirrored = Callable[[Any], Mirrored | None]


def regroup(
    results: Sequence[Any],
    mesh: ReplicaMesh,
    *,
    find_mirrored: FindMirrored,
    arguments: Collection[int] = (),
    shared: Mapping[int, int] = types.MappingProxyType({}),
    what: str = "the end of a run",
) -> Any:
    """One nest out of one nest per replica.

    Args:
        results: What each replica returned, in replica order.
        mesh: The devices of the replicas.
        find_mirrored: The mirrored value that an array is a copy of, if any.
        arguments: The ``id`` of every argument leaf: a NumPy array counts as
            "the same object" only when it was passed in.
        shared: The ``id`` of every array and mirrored value that all workers have alike, with a
            number that is the same on all of them; only with several.
        what: Where the replicas are, for errors when another worker is somewhere else.
    """
    if mesh.num_replicas == 1:
        return results[0]

    def merge(leaves: tuple[Any, ...]) -> Any:
        first = leaves[0]
        if all(leaf is first for leaf in leaves):
            if isinstance(first, ComponentView):
                return first if first._owner is None else first._owner
            is_local = mesh.spans_workers and isinstance(first, jax.Array)
            if is_local and id(first) not in shared:
                pass  # other workers have other objects
            elif not isinstance(first, (np.ndarray, np.generic)) or id(first) in arguments:
                return first
        elif same_python_value(leaves):
            return first
        container = _common_container(leaves, find_mirrored)
        return PerReplica(mesh, components=leaves) if container is None else container

    merged = nest.transpose(results, merge)
    return agreed(merged, mesh, shared, what) if mesh.spans_workers else merged


def same_python_value(leaves: Sequence[Any]) -> bool:
    """Whether all leaves are equal Python numbers or strings of one type.

    Example:
        >>> same_python_value([1, 1]), same_python_value([1, 1.0]), same_python_value([0.0, -0.0])
        (True, False, False)
    """
    if any(type(leaf) not in _EQUAL_BY_VALUE for leaf in leaves):
        return False
    first = exact(leaves[0])
    return all(exact(leaf) == first for leaf in leaves)


def _common_container(
    leaves: tuple[Any, ...], find_mirrored: FindMirrored
) -> DistributedValues | None:
    containers = [
        leaf._owner if isinstance(leaf, ComponentView) else find_mirrored(leaf) for leaf in leaves
    ]
    first = containers[0]
    if first is None or any(container is not first for container in containers):
        return None
    return first


def select(tree: Any, replica_id: int) -> Any:
    """`tree` as one replica sees it: each distributed value replaced by its component."""
    return nest.map_leaves(lambda leaf: selected(leaf, replica_id), tree)


def selected(leaf: Any, replica_id: int) -> Any:
    """A leaf as one replica sees it."""
    return leaf._select(replica_id) if isinstance(leaf, DistributedValues) else leaf


def agreed(merged: Any, mesh: ReplicaMesh, shared: Mapping[int, int], what: str) -> Any:
    """What the replicas of this worker returned, as it is seen with those of all workers.

    A value that is the same on all replicas of one worker may be another on the next one; then it
    is a `PerReplica` on both. Values get to know the shapes of their components everywhere.

    Raises:
        ValueError: If the workers returned different structures.
        WorkersDifferError: If they returned leaves of different kinds.
    """
    leaves, structure = nest.flatten(merged)
    count = len(mesh.local_replicas)
    own = [_described(leaf, count, shared) for leaf in leaves]
    rows = workers.require().exchange(what, [str(structure), own])
    for rank, (other, _) in enumerate(rows):
        if other != rows[0][0]:
            nest.refuse_structures(rows[0][0], other, rank * count)
    for index, leaf in enumerate(leaves):
        everywhere = [described[index] for _, described in rows]
        kinds = {kind for kind, _, _ in everywhere}
        if len(kinds) > 1 and not kinds <= _ARRAYS:
            _refuse_kinds([[kind for kind, _, _ in described] for _, described in rows])
        shapes = [tuple(shape) for _, _, here in everywhere for shape in here]
        if isinstance(leaf, PerReplica):
            leaves[index] = leaf._with_shapes(shapes)
        elif any(row != everywhere[0] for row in everywhere):
            here = leaf.values if isinstance(leaf, Mirrored) else [leaf] * count
            leaves[index] = PerReplica(mesh, components=here, shapes=shapes)
    return nest.unflatten(structure, leaves)


_ARRAYS = {"number", "shared", "per replica"}
"""The kinds of leaves that may stand in one place: each worker has arrays, or numbers, there."""


def _refuse_kinds(rows: list[list[str]]) -> NoReturn:
    rank = next(rank for rank, kinds in enumerate(rows) if kinds != rows[0])
    names = workers.require().names
    raise WorkersDifferError(
        f"a run returned leaves of different kinds: {rows[rank]} on {names[rank]}, and {rows[0]} "
        f"on {names[0]}."
    )


def _described(leaf: Any, count: int, shared: Mapping[int, int]) -> list[Any]:
    """What other workers must know of a leaf: its kind, which one it is, the shapes of its parts.

    Plain values for JSON.
    """
    if isinstance(leaf, PerReplica):
        if all(map(placement.is_array_like, leaf.values)):
            return ["per replica", None, [list(np.shape(value)) for value in leaf.values]]
        return ["object", None, [[]] * count]
    if type(leaf) in (str, bytes):
        return ["text", repr(leaf), [[]] * count]
    if type(leaf) in _EQUAL_BY_VALUE:
        return ["number", repr(leaf), [[]] * count]
    if id(leaf) in shared:
        return ["shared", shared[id(leaf)], [list(np.shape(leaf))] * count]
    return ["object", "", [[]] * count]
