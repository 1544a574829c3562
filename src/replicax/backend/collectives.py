"""Reductions across replicas, inside a compiled program and on placed arrays.

Small values of one type travel together: a collective costs much the same for
four bytes as for sixty thousand, and XLA does not merge the operands itself.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from replicax.backend import compat
from replicax.backend.mesh import PER_REPLICA, REPLICATED, ReplicaMesh
from replicax.core.enums import ReduceOp
from replicax.core.names import REPLICA_AXIS

PACKED_BELOW = 16_384
"""Leaves with fewer elements are packed; larger ones lose more by the copy than they gain."""

TRANSPOSED_LATER_FROM = 512
"""Sums of that many products gain more by it than reading the result transposed costs: a
transformer with 1024 tokens on each replica needs 7% less time. For few products it is not so."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reduction:
    """How a compiled program adds values of all replicas.

    Attributes:
        num_packs: Into how many operands the small leaves of one type are
            packed; 0 sends every leaf by itself.
        bytes_per_pack: The size of an operand that leaves of one type are packed
            into, whatever their own size; 0 packs by `num_packs`.
        on_replica: The replica whose device adds everything, or None for an
            all-reduce.
        accumulate: Adds the list of all replicas' values, only with `on_replica`.
        ordered: Whether every device adds all values in the order of the replicas, so
            that the bits do not depend on how the replicas are spread over workers.
        widens: Whether numbers of 8 or 16 bits travel as 32. XLA does so itself on CPUs,
            but ends the process if the program is partitioned within replicas too.
    """

    num_packs: int = 1
    bytes_per_pack: int = 0
    on_replica: int | None = None
    accumulate: Callable[[list[jax.Array]], jax.Array] | None = None
    ordered: bool = False
    widens: bool = False

    @property
    def is_plain_sum(self) -> bool:
        """Whether nobody cares where and by what the values are added."""
        return self.on_replica is None and self.accumulate is None

    def with_bytes_per_pack(self, bytes_per_pack: int) -> Reduction:
        """The same with another pack size; 0 leaves it as it is."""
        if not bytes_per_pack:
            return self
        return dataclasses.replace(self, bytes_per_pack=bytes_per_pack)


ALL_REDUCE = Reduction()


def as_mean_dtype(dtype: Any) -> Any:
    """The dtype of a mean: floats keep theirs, everything else becomes the default float."""
    return dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.result_type(float)


def all_reduce(
    op: ReduceOp, values: Sequence[Any], num_replicas: int, reduction: Reduction = ALL_REDUCE
) -> list[jax.Array]:
    """Sum or mean over all replicas of each value, in a compiled replica function."""
    return finished(op, _packed_sum(addable(op, values), reduction), num_replicas)


def addable(op: ReduceOp, values: Sequence[Any]) -> list[jax.Array]:
    """The values in the types in which they are added for `op`."""
    arrays = [jnp.asarray(value) for value in values]
    if op is ReduceOp.MEAN:  # first, because a sum of integers may not fit their type
        arrays = [a.astype(as_mean_dtype(a.dtype)) for a in arrays]
    return [a.astype(jnp.int32) if a.dtype == bool else a for a in arrays]


def finished(op: ReduceOp, sums: list[jax.Array], num_replicas: int) -> list[jax.Array]:
    """What `op` makes of the sums over all replicas."""
    if op is ReduceOp.SUM:
        return sums
    return [(s / num_replicas).astype(as_mean_dtype(s.dtype)) for s in sums]


def _packed_sum(arrays: list[jax.Array], reduction: Reduction) -> list[jax.Array]:
    results: list[Any] = [None] * len(arrays)
    for pack in packs(arrays, reduction):
        if len(pack) == 1:
            results[pack[0]] = _sum_before_transposing(arrays[pack[0]], reduction)
            continue
        flat = jnp.concatenate([arrays[i].reshape(-1) for i in pack])
        total = _sum_over_replicas(flat, reduction)
        offsets = np.cumsum([arrays[i].size for i in pack])[:-1].tolist()
        for i, part in zip(pack, jnp.split(total, offsets), strict=True):
            results[i] = part.reshape(arrays[i].shape)
    return results


def _sum_before_transposing(array: jax.Array, reduction: Reduction) -> jax.Array:
    """The sum over the replicas; some products that were transposed are transposed afterwards.

    JAX transposes the product that the gradient of a matrix is. Where it sums over several dims,
    such as batch and sequence, XLA brings its factors into the form of its quickest kernel, but
    makes product and transposition one of another form first if it can. With the all-reduce
    between them it cannot, and the next operation reads the sum transposed.
    """
    made = compat.transposed_product(array)
    if (
        made is None
        or len(made.contracted) < 2
        or math.prod(made.contracted) < TRANSPOSED_LATER_FROM
    ):
        return _sum_over_replicas(array, reduction)
    return lax.transpose(_sum_over_replicas(made.product, reduction), made.permutation)


def packs(arrays: list[jax.Array], reduction: Reduction) -> list[list[int]]:
    """Which arrays travel together, as lists of their indices."""
    alone: list[list[int]] = []
    groups: dict[Any, list[int]] = {}
    for index, array in enumerate(arrays):
        small = array.size < PACKED_BELOW and reduction.num_packs > 0
        if small or reduction.bytes_per_pack:
            groups.setdefault(array.dtype, []).append(index)
        else:
            alone.append([index])
    for indices in groups.values():
        alone += (
            _by_bytes(indices, arrays, reduction.bytes_per_pack)
            if reduction.bytes_per_pack
            else _by_number(indices, reduction.num_packs)
        )
    return alone


def _by_number(indices: list[int], num_packs: int) -> list[list[int]]:
    size = -(-len(indices) // num_packs)
    return [indices[start : start + size] for start in range(0, len(indices), size)]


def _by_bytes(indices: list[int], arrays: list[jax.Array], limit: int) -> list[list[int]]:
    packs: list[list[int]] = []
    filled = limit
    for index in indices:
        size = arrays[index].size * arrays[index].dtype.itemsize
        if filled + size > limit:
            packs.append([])
            filled = 0
        packs[-1].append(index)
        filled += size
    return packs


def _sum_over_replicas(array: jax.Array, reduction: Reduction) -> jax.Array:
    if reduction.widens and array.dtype.itemsize < 4:
        wide = jnp.float32 if jnp.issubdtype(array.dtype, jnp.floating) else jnp.int32
        return _sum_over_replicas(array.astype(wide), reduction).astype(array.dtype)
    if reduction.ordered:
        gathered = lax.all_gather(array, REPLICA_AXIS)
        return functools.reduce(jnp.add, [gathered[i] for i in range(gathered.shape[0])])
    if reduction.on_replica is None:
        return _psum(array)
    gathered = lax.all_gather(array, REPLICA_AXIS)
    add = reduction.accumulate or functools.partial(functools.reduce, jnp.add)
    here = lax.axis_index(REPLICA_AXIS) == reduction.on_replica
    total = lax.cond(
        here,
        lambda: add([gathered[i] for i in range(gathered.shape[0])]),
        lambda: jnp.zeros_like(array),
    )
    return lax.psum(total, REPLICA_AXIS)


def _psum(array: jax.Array) -> jax.Array:
    """The sum over the replicas. XLA cannot add up pieces over an axis of a single replica."""
    return array if lax.axis_size(REPLICA_AXIS) == 1 else lax.psum(array, REPLICA_AXIS)


def from_first_replica(array: jax.Array) -> jax.Array:
    """Replica 0's value on every replica, bit by bit, in a compiled replica function."""
    first = lax.axis_index(REPLICA_AXIS) == 0
    if array.dtype == bool:
        return from_first_replica(array.astype(jnp.int32)).astype(bool)
    if jnp.issubdtype(array.dtype, jnp.floating) and array.dtype.itemsize <= 4:
        bits = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[array.dtype.itemsize]
        whole = lax.bitcast_convert_type(array, bits).astype(jnp.uint32)
        return lax.bitcast_convert_type(from_first_replica(whole).astype(bits), array.dtype)
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        data = from_first_replica(jax.random.key_data(array))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))
    return _psum(jnp.where(first, array, jnp.zeros_like(array)))


def per_replica_map(
    fn: Callable[..., Any], mesh: ReplicaMesh, *, replicated_out: bool
) -> Callable[..., Any]:
    """`fn` over the components of per-replica arrays, as one SPMD program."""
    out = REPLICATED if replicated_out else PER_REPLICA
    return jax.shard_map(
        fn,
        mesh=mesh.mesh,
        in_specs=PER_REPLICA,
        out_specs=out,
        axis_names={REPLICA_AXIS},
        check_vma=False,
    )
