"""Reductions and updates of variables that are split over the replicas.

In a compiled replica function every replica gets its part of a reduction, and an update that was
declared elementwise runs on parts. Everywhere else values are whole, and nothing here is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

from replicax.backend import shards
from replicax.backend.collectives import Reduction
from replicax.backend.mesh import ReplicaMesh
from replicax.backend.shards import ShardLayout
from replicax.core.enums import ReduceOp
from replicax.engine.storage import own_part
from replicax.engine.trace.frame import current_frame
from replicax.values.distributed import DistributedValues
from replicax.values.reduce import check_even
from replicax.values.traced import TracedMirrored, TracedPerReplica
from replicax.values.traced_parts import TracedSplit
from replicax.variables.mirrored import MirroredVariable
from replicax.variables.sharded import ShardedVariable, VariablePart

Fn = TypeVar("Fn", bound=Callable[..., Any])


def elementwise(fn: Fn) -> Fn:
    """Declares that a function for ``extended.update`` treats every element by itself.

    With a variable that is split over the replicas, it then gets the replica's part of the
    variable, and of every argument that has the variable's shape, each as a row of elements, and
    nothing is gathered. Scalars and values of other shapes come as they are. Where values are
    whole it is called as any other function.

    Args:
        fn: The function.

    Returns:
        A function that does what `fn` does.

    Example:
        >>> import replicax as rx
        >>> @rx.experimental.elementwise
        ... def descend(v, gradient):
        ...     v.assign_sub(0.1 * gradient)
    """

    @functools.wraps(fn)
    def declared(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    declared._replicax_elementwise = True  # pyright: ignore[reportAttributeAccessIssue]
    return declared  # pyright: ignore[reportReturnType]


def runs_on_parts(fn: Callable[..., Any]) -> bool:
    """Whether `fn` gets parts here: it is declared elementwise, in a compiled replica function."""
    frame = current_frame()
    declared = getattr(fn, "_replicax_elementwise", False)
    return declared and frame is not None and frame.in_replica


def part_of_argument(leaf: Any, layout: ShardLayout) -> Any:
    """What an elementwise update gets for an argument."""
    if isinstance(leaf, TracedSplit):
        return leaf._part if leaf._layout == layout else leaf
    if isinstance(leaf, ShardedVariable):
        return VariablePart(leaf) if leaf._layout == layout else leaf
    if isinstance(leaf, (TracedMirrored, MirroredVariable)):
        leaf = leaf.read_value()
    if isinstance(leaf, jax.Array) and leaf.shape == layout.shape and leaf.shape:
        return own_part(layout, leaf, "an argument of extended.update")
    return leaf


def reduced_to_parts(
    op: ReduceOp,
    values: Sequence[Any],
    layouts: Sequence[ShardLayout | None],
    mesh: ReplicaMesh,
    reduction: Reduction,
) -> dict[int, TracedSplit]:
    """Those of the reduced values of which every replica gets its part, by their index."""
    found: list[tuple[int, TracedPerReplica, ShardLayout]] = []
    for index, (value, layout) in enumerate(zip(values, layouts, strict=True)):
        if layout is None:
            continue
        value = value._as_components() if isinstance(value, DistributedValues) else value
        if isinstance(value, TracedPerReplica) and value._local.shape == layout.shape:
            check_even(value)
            found.append((index, value, layout))
    parts = shards.reduce_scatter(
        op,
        [value._local for _, value, _ in found],
        [layout for *_, layout in found],
        reduction,
    )
    return {
        index: TracedSplit(mesh, part, layout)
        for (index, _, layout), part in zip(found, parts, strict=True)
    }
