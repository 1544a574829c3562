"""Declared shapes and dtypes, for `input_signature` and for the elements of datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class TypeSpec:
    """Base of all declarations of what a value looks like.

    Example:
        >>> isinstance(TensorSpec((2, 3)), TypeSpec)
        True
    """

    __slots__ = ()


class TensorSpec(TypeSpec):
    """The shape and dtype of an array; None is a dim (or a shape) of any size.

    Args:
        shape: One size for each dim.
        dtype: The dtype.
        name: A name for the reader; it is not compared.

    Example:
        >>> TensorSpec((None, 3), "float32").is_compatible_with((8, 3), "float32")
        True
        >>> TensorSpec((None, 3), "float32").is_compatible_with((8, 4), "float32")
        False
    """

    __slots__ = ("dtype", "name", "shape")

    def __init__(
        self, shape: Sequence[int | None] | None, dtype: Any = "float32", name: str | None = None
    ) -> None:
        """Declares `shape` (None: any) and `dtype`."""
        self.shape = None if shape is None else tuple(shape)
        self.dtype = np.dtype(dtype)
        self.name = name

    def is_compatible_with(self, shape: Sequence[int], dtype: Any) -> bool:
        """Whether an array of this shape and dtype fits.

        Args:
            shape: The shape of the array.
            dtype: Its dtype.

        Returns:
            True if it fits.
        """
        if np.dtype(dtype) != self.dtype:
            return False
        if self.shape is None:
            return True
        return len(self.shape) == len(shape) and all(
            declared is None or declared == size
            for declared, size in zip(self.shape, shape, strict=True)
        )

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TensorSpec)
            and self.shape == other.shape
            and self.dtype == other.dtype
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    def __repr__(self) -> str:
        return f"TensorSpec(shape={self.shape}, dtype={self.dtype.name}, name={self.name!r})"


class PerReplicaSpec(TypeSpec):
    """One declaration per replica.

    Inside ``run`` an argument is one component and is checked against the
    declaration of any replica.

    Args:
        *components: The declaration of each replica, in replica order.

    Example:
        >>> PerReplicaSpec(TensorSpec((2,)), TensorSpec((1,))).components
        (TensorSpec(shape=(2,), dtype=float32, name=None), \
TensorSpec(shape=(1,), dtype=float32, name=None))
    """

    __slots__ = ("components",)

    def __init__(self, *components: TensorSpec) -> None:
        """Declares each replica's component, in replica order."""
        self.components = components

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerReplicaSpec) and self.components == other.components

    def __hash__(self) -> int:
        return hash(self.components)

    def __repr__(self) -> str:
        return f"PerReplicaSpec{self.components!r}"
