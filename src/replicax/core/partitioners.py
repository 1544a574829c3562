"""Says into how many partitions a variable is to be cut, from its shape and dtype.

Pure arithmetic on shapes: nothing here touches a device. A partitioner is any callable from a
shape and a dtype to one number of partitions for each dim; these are the documented ones.
`core.sharding` is what asks them here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = [
    "FixedShardsPartitioner",
    "MaxSizePartitioner",
    "MinSizePartitioner",
    "Partitioner",
]


class Partitioner:
    """Base of the documented partitioners; any callable of a shape and a dtype serves as well.

    Example:
        >>> class ByColumns(Partitioner):
        ...     def __call__(self, shape, dtype, axis=0):
        ...         return [1] * (len(shape) - 1) + [4]
        >>> ByColumns()((3, 8), np.float32)
        [1, 4]
    """

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """The number of partitions along each dim; all but that of `axis` are 1.

        Args:
            shape: The shape of the variable.
            dtype: Its dtype.
            axis: The dim to cut.
        """
        raise NotImplementedError


class FixedShardsPartitioner(Partitioner):
    """So many partitions, as far as the dim has rows for them.

    Args:
        num_shards: How many.

    Example:
        >>> FixedShardsPartitioner(2)((10, 3), np.float32)
        [2, 1]
        >>> FixedShardsPartitioner(4)((3,), np.float32)
        [3]
    """

    def __init__(self, num_shards: int) -> None:
        self._num_shards = _positive(num_shards, "num_shards")

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """As `Partitioner` says."""
        del dtype
        return _along(shape, axis, lambda rows, _: min(self._num_shards, rows), 0)


class MinSizePartitioner(Partitioner):
    """As many partitions as there can be without one that is smaller than a given size.

    Args:
        min_shard_bytes: The smallest size of a partition.
        max_shards: The largest number of partitions.
        bytes_per_string: What to count for a string.

    Example:
        >>> MinSizePartitioner(min_shard_bytes=4, max_shards=10)((6, 1), np.float32)
        [6, 1]
        >>> MinSizePartitioner(min_shard_bytes=4, max_shards=2)((6, 1), np.float32)
        [2, 1]
    """

    def __init__(
        self, min_shard_bytes: int = 256 << 10, max_shards: int = 1, bytes_per_string: int = 16
    ) -> None:
        """With partitions of `min_shard_bytes` or more."""
        self._min_shard_bytes = _positive(min_shard_bytes, "min_shard_bytes")
        self._max_shards = _positive(max_shards, "max_shards")
        self._bytes_per_string = _positive(bytes_per_string, "bytes_per_string")

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """As `Partitioner` says."""

        def partitions(rows: int, row_bytes: int) -> int:
            rows_in_one = -(-self._min_shard_bytes // max(row_bytes, 1))
            return min(self._max_shards, rows // rows_in_one)

        return _along(shape, axis, partitions, _item_bytes(dtype, self._bytes_per_string))


class MaxSizePartitioner(Partitioner):
    """As few partitions as there can be without one that is larger than a given size.

    A single row may be larger than that, and so may partitions when `max_shards` allows no more.

    Args:
        max_shard_bytes: The largest size of a partition.
        max_shards: The largest number of partitions; None for no limit.
        bytes_per_string: What to count for a string.

    Example:
        >>> MaxSizePartitioner(max_shard_bytes=4)((6, 1), np.float32)
        [6, 1]
        >>> MaxSizePartitioner(max_shard_bytes=1024)((6, 1), np.float32)
        [1, 1]
    """

    def __init__(
        self, max_shard_bytes: int, max_shards: int | None = None, bytes_per_string: int = 16
    ) -> None:
        """With partitions of `max_shard_bytes` or less."""
        self._max_shard_bytes = _positive(max_shard_bytes, "max_shard_bytes")
        self._max_shards = None if max_shards is None else _positive(max_shards, "max_shards")
        self._bytes_per_string = _positive(bytes_per_string, "bytes_per_string")

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """As `Partitioner` says."""

        def partitions(rows: int, row_bytes: int) -> int:
            rows_in_one = max(self._max_shard_bytes // max(row_bytes, 1), 1)
            needed = -(-rows // rows_in_one)
            return needed if self._max_shards is None else min(self._max_shards, needed)

        return _along(shape, axis, partitions, _item_bytes(dtype, self._bytes_per_string))


def _positive(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; expected an int of 1 or more.")
    return value


def _along(
    shape: Sequence[int], axis: int, partitions: Callable[[int, int], int], item_bytes: int
) -> list[int]:
    """One number for each dim; `partitions` gives that of `axis` from its rows and their bytes."""
    result = [1] * len(shape)
    if not shape:
        return result
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"axis is {axis!r}; a variable of shape {tuple(shape)} has no such dim.")
    rows = int(shape[axis])
    row_bytes = item_bytes * math.prod(shape) // rows if rows else 0
    result[axis] = max(partitions(rows, row_bytes), 1)
    return result


def _item_bytes(dtype: Any, bytes_per_string: int) -> int:
    dtype = np.dtype(dtype)
    return bytes_per_string if dtype.kind in "SUO" else dtype.itemsize
