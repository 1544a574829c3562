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
from jax.core import Tracer

from replicax.backend.mesh import PER_REPLICA, REPLICATED, ReplicaMesh
from replicax.core.enums import ReduceOp
from replicax.core.names import REPLICA_AXIS
from replicax.jax_internals.programs import transposed_product

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
        custom: Combines values of all replicas in place of all this: called with the operation
            and a list of values, each the replica's own in a compiled function, or a per-replica
            value outside of one.
    """

    num_packs: int = 1
    bytes_per_pack: int = 0
    on_replica: int | None = None
    accumulate: Callable[[list[jax.Array]], jax.Array] | None = None
    ordered: bool = False
    custom: Callable[[ReduceOp, Sequence[Any]], list[jax.Array]] | None = None

    @property
    def is_plain_sum(self) -> bool:
        """Whether nobody cares where and by what the values are added."""
        return self.on_replica is None and self.accumulate is None and self.custom is None

    def with_bytes_per_pack(self, bytes_per_pack: int) -> Reduction:
        """The same with another pack size; 0 leaves it as it is."""
        if not bytes_per_pack:
            return self
        return dataclasses.replace(self, bytes_per_pack=bytes_per_pack)


ALL_REDUCE = Reduction()


def as_mean_dtype(dtype: Any) -> Any:
    """The dtype of a mean: floats keep theirs, everything else becomes the default float."""
    return dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.result_type(float)


def summing_dtype(dtype: Any) -> Any:
    """The dtype in which values of `dtype` are added; the sum is rounded once, at the end.

    It has 32 bits at least: in half floats 1,000 times 100 is infinite, and beyond 2048 adding 1
    changes nothing. XLA adds 16-bit numbers so by itself on CPUs, but ends the process if the
    program is partitioned within replicas too.

    Example:
        >>> summing_dtype(jnp.dtype("float16")).__name__, summing_dtype(jnp.dtype("int32")).name
        ('float32', 'int32')
    """
    if dtype.itemsize >= 4:
        return dtype
    return jnp.float32 if jnp.issubdtype(dtype, jnp.floating) else jnp.int32


def all_reduce(
    op: ReduceOp, values: Sequence[Any], num_replicas: int, reduction: Reduction = ALL_REDUCE
) -> list[jax.Array]:
    """Sum or mean over all replicas of each value, in a compiled replica function."""
    arrays = addable(op, values)
    if reduction.custom is not None and num_replicas > 1 and arrays:
        return reduction.custom(op, arrays)
    with jax.named_scope(f"rx.all_reduce.{op.name}"):
        sums = _packed_sum(arrays, reduction)
    return [
        finished(op, total, array.dtype, num_replicas)
        for total, array in zip(sums, arrays, strict=True)
    ]


def addable(op: ReduceOp, values: Sequence[Any]) -> list[jax.Array]:
    """The values in the types that the results of `op` have."""
    arrays = [v if isinstance(v, jax.Array) else jnp.asarray(v) for v in values]
    if op is ReduceOp.MEAN:  # first, because a sum of integers may not fit their type
        arrays = [a.astype(as_mean_dtype(a.dtype)) for a in arrays]
    return [a.astype(jnp.int32) if a.dtype == bool else a for a in arrays]


def sum_over_dims(
    op: ReduceOp, array: jax.Array, axis: int | tuple[int, ...]
) -> tuple[jax.Array, Any]:
    """The sum over some dims, on the way to `op` over all replicas, and the dtype of the result."""
    dtype = as_mean_dtype(array.dtype) if op is ReduceOp.MEAN else array.dtype
    if jnp.issubdtype(dtype, jnp.inexact):
        return array.sum(axis, dtype=summing_dtype(dtype)), dtype
    total = array.sum(axis)  # of small integers and bools a wider one
    return total, total.dtype


def finished(op: ReduceOp, total: jax.Array, dtype: Any, count: int) -> jax.Array:
    """What `op` makes of the sum of `count` values, in the dtype of the result."""
    return (total if op is ReduceOp.SUM else total / float(max(count, 1))).astype(dtype)


def _packed_sum(arrays: list[jax.Array], reduction: Reduction) -> list[jax.Array]:
    """The sums over all replicas, each in its `summing_dtype`."""
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
    made = transposed_product(array)
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
        # XLA ends the process over some programs that join empty arrays with others.
        if array.size and (small or reduction.bytes_per_pack):
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
    array = array.astype(summing_dtype(array.dtype))
    if not array.size:  # nothing to send, and equal on all replicas from here on
        return jnp.zeros(array.shape, array.dtype)
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


def _psum(array: jax.Array, axes: str | tuple[str, ...] = REPLICA_AXIS) -> jax.Array:
    """The sum over the replicas. XLA cannot add up pieces over an axis of a single replica."""
    if lax.axis_size(axes) == 1:
        return array
    if not isinstance(array, Tracer):  # psum would multiply: it takes it for the same everywhere,
        array = jnp.copy(array)  # but Python may have chosen it by the replica id
    return lax.psum(array, axes)


@jax.named_scope("rx.all_gather")
def gathered(
    array: jax.Array, dim: int = 0, *, tiled: bool = False, axis: str = REPLICA_AXIS
) -> jax.Array:
    """The values of all replicas on every one, along `dim`; `tiled` joins them in that dim.

    The gradient is a sum over the replicas, so numbers travel in their `summing_dtype`. Values
    without elements do not travel: XLA has no collective for them.
    """
    if not array.size:
        shape = list(array.shape) if tiled else [*array.shape[:dim], 1, *array.shape[dim:]]
        shape[dim] *= lax.axis_size(axis)
        return jnp.zeros(shape, array.dtype)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return lax.all_gather(array, axis, axis=dim, tiled=tiled)
    wide = array.astype(summing_dtype(array.dtype))
    return lax.all_gather(wide, axis, axis=dim, tiled=tiled).astype(array.dtype)


@jax.named_scope("rx.from_first_replica")
def from_first_replica(array: jax.Array) -> jax.Array:
    """Replica 0's value on every replica, bit by bit, in a compiled replica function."""
    return from_one(array, lax.axis_index(REPLICA_AXIS) == 0, REPLICA_AXIS)


def from_one(array: jax.Array, is_there: jax.Array, axes: str | tuple[str, ...]) -> jax.Array:
    """The value of the device where `is_there` on all devices of the mesh axes, bit by bit."""
    dtype = array.dtype
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        data = from_one(jax.random.key_data(array), is_there, axes)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))
    if jnp.issubdtype(dtype, jnp.complexfloating):
        real, imag = (from_one(part, is_there, axes) for part in (array.real, array.imag))
        return lax.complex(real, imag)
    if jnp.issubdtype(dtype, jnp.floating):  # whose sum with 0 would lose the sign of -0
        bits = {1: jnp.uint8, 2: jnp.uint16}.get(dtype.itemsize, jnp.uint32)
        same = from_one(lax.bitcast_convert_type(array, bits), is_there, axes)
        return lax.bitcast_convert_type(same, dtype)
    if dtype.itemsize < 4:
        return from_one(array.astype(jnp.int32), is_there, axes).astype(dtype)
    return _psum(jnp.where(is_there, array, jnp.zeros_like(array)), axes)


def on_all_devices(array: jax.Array, mesh: ReplicaMesh) -> jax.Array:
    """`array`, divided among the replicas on dim 0, whole on every device; in a whole program.

    To be called before it is cut: XLA makes a slice of a divided array by adding the parts that
    the devices have of it to zeros, which turns -0 into 0 and the smallest numbers too.
    """
    if mesh.num_replicas == 1:
        return array
    return lax.with_sharding_constraint(array, mesh.replicated)


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
