"""A value split over the replicas: its elements in order, cut into equal parts.

An array of any shape is seen as the row of its elements. It is filled up with zeros to a multiple
of the number of replicas, and each replica has one piece of it. So every shape can be split, a
part is never more than one element larger than its share, and a change of shape costs nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from replicax.backend import collectives
from replicax.backend.collectives import Reduction
from replicax.core.enums import ReduceOp
from replicax.core.names import REPLICA_AXIS


@dataclasses.dataclass(frozen=True, slots=True)
class ShardLayout:
    """How a value of one shape is split.

    Attributes:
        shape: The shape of the whole.
        num_parts: Into how many parts: the number of replicas.

    Example:
        >>> layout = ShardLayout((2, 3), 4)
        >>> layout.part_size, layout.bounds
        (2, ((0, 2), (2, 4), (4, 6), (6, 6)))
    """

    shape: tuple[int, ...]
    num_parts: int

    @property
    def size(self) -> int:
        """The number of elements of the whole."""
        return math.prod(self.shape)

    @property
    def part_size(self) -> int:
        """The number of elements of a part, with what fills it up."""
        return -(-self.size // self.num_parts)

    @property
    def num_added(self) -> int:
        """How many elements fill up the last parts."""
        return self.part_size * self.num_parts - self.size

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Which elements of the whole each part has."""
        cuts = [min(i * self.part_size, self.size) for i in range(self.num_parts + 1)]
        return tuple(itertools.pairwise(cuts))

    def reshaped(self, shape: Sequence[int]) -> ShardLayout:
        """The same parts, of a whole with another shape."""
        return ShardLayout(tuple(shape), self.num_parts)

    def split(self, whole: jax.Array) -> jax.Array:
        """All parts of `whole`, one in each row."""
        row = lax.reshape(whole, (self.size,))
        if self.num_added:
            row = lax.pad(row, jnp.zeros((), row.dtype), [(0, self.num_added, 0)])
        return lax.reshape(row, (self.num_parts, self.part_size))

    def joined(self, parts: jax.Array) -> jax.Array:
        """The whole, from all parts in any shape that has them one after the other."""
        row = lax.reshape(parts, (self.num_parts * self.part_size,))
        if self.num_added:
            row = lax.slice(row, (0,), (self.size,))
        return lax.reshape(row, self.shape)

    # -- in a compiled replica function ------------------------------------------------------

    def own_part(self, whole: jax.Array) -> jax.Array:
        """The replica's part of a value that it has whole; nothing travels."""
        parts = self.split(whole)
        return lax.dynamic_index_in_dim(parts, lax.axis_index(REPLICA_AXIS), keepdims=False)

    def gathered(self, part: jax.Array) -> jax.Array:
        """The whole on every replica, from the part of each."""
        with jax.named_scope("rx.all_gather"):
            return self.joined(lax.all_gather(part, REPLICA_AXIS, tiled=True))

    def is_real(self) -> jax.Array:
        """For each element of the replica's part whether it is one of the whole."""
        first = lax.axis_index(REPLICA_AXIS) * self.part_size
        return first + lax.iota(jnp.int32, self.part_size) < self.size


def reduce_scatter(
    op: ReduceOp,
    values: Sequence[jax.Array],
    layouts: Sequence[ShardLayout],
    reduction: Reduction,
) -> list[jax.Array]:
    """The replica's part of the sum or mean over all replicas, in a compiled replica function.

    Small values of one type travel together, as in an all-reduce. Where the sum is to be made in
    another way than by one collective, it is made whole and cut.
    """
    if not values:
        return []
    num_replicas = layouts[0].num_parts
    if reduction.on_replica is not None or reduction.ordered:
        sums = collectives.all_reduce(op, values, num_replicas, reduction)
        return [layout.own_part(total) for layout, total in zip(layouts, sums, strict=True)]
    arrays = collectives.addable(op, values)
    rows = [
        layout.split(array.astype(collectives.summing_dtype(array.dtype)))
        for layout, array in zip(layouts, arrays, strict=True)
    ]

    def scattered(sent: jax.Array) -> jax.Array:
        with jax.named_scope(f"rx.reduce_scatter.{op.name}"):
            return lax.psum_scatter(sent, REPLICA_AXIS, scatter_dimension=0)

    return [
        collectives.finished(op, total, array.dtype, num_replicas)
        for total, array in zip(_sent_together(rows, scattered, reduction), arrays, strict=True)
    ]


def all_gather(
    parts: Sequence[jax.Array], layouts: Sequence[ShardLayout], reduction: Reduction
) -> list[jax.Array]:
    """The whole of each value, in a compiled replica function; small parts travel together."""

    def gathered(sent: jax.Array) -> jax.Array:
        with jax.named_scope("rx.all_gather"):
            return lax.all_gather(sent, REPLICA_AXIS)

    rows = _sent_together(parts, gathered, reduction)
    return [layout.joined(row) for layout, row in zip(layouts, rows, strict=True)]


def _sent_together(
    arrays: Sequence[jax.Array], send: Callable[[jax.Array], jax.Array], reduction: Reduction
) -> list[jax.Array]:
    """What `send` makes of each array; it keeps the last dim, along which small ones are joined."""
    results: dict[int, jax.Array] = {}
    for pack in collectives.packs(list(arrays), reduction):
        last = arrays[pack[0]].ndim - 1
        received = send(lax.concatenate([arrays[index] for index in pack], last))
        ends = itertools.accumulate(arrays[index].shape[-1] for index in pack)
        start = 0
        for index, end in zip(pack, ends, strict=True):
            results[index] = lax.slice_in_dim(received, start, end, axis=-1)
            start = end
    return [results[index] for index in range(len(arrays))]
