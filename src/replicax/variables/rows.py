"""Gradients of a variable of which a loss reads a few rows only.

``value_and_grad`` tracks such reads: rows that were read by themselves get a gradient of their
own, and nothing of the size of the whole variable is computed. Which variables read rows by
themselves, their class says; `variables.gradients` and they are the callers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True, slots=True)
class RowGradient:
    """The gradient of some rows of a variable; that of all others is zero.

    Attributes:
        rows: Which rows; one that occurs twice has the sum of both gradients.
        values: The gradient of each.
        shape: The shape of the variable.

    Example:
        >>> gradient = RowGradient(jnp.array([1, 1]), jnp.ones((2, 2)), (3, 2))
        >>> gradient.dense()
        Array([[0., 0.],
               [2., 2.],
               [0., 0.]], dtype=float32)
    """

    rows: jax.Array
    values: jax.Array
    shape: tuple[int, ...]

    @property
    def dtype(self) -> Any:
        """The dtype of the gradient."""
        return self.values.dtype

    def dense(self) -> jax.Array:
        """The same as an array of the variable's shape.

        Returns:
            The array.
        """
        return jnp.zeros(self.shape, self.dtype).at[self.rows].add(self.values)

    def scaled(self, factor: Any) -> RowGradient:
        """The gradient times a number.

        Args:
            factor: The number.

        Returns:
            The product.
        """
        values = (self.values * factor).astype(self.dtype)
        return dataclasses.replace(self, values=values)

    def summed(self) -> RowGradient:
        """The same with each row once; what is left over has zeros, and a row out of bounds.

        Returns:
            A gradient of as many rows.
        """
        count, size = self.rows.shape[0], self.shape[0]
        unique, places = jnp.unique(self.rows, return_inverse=True, size=count, fill_value=size)
        total = jax.ops.segment_sum(self.values, places.reshape(-1), num_segments=count)
        return dataclasses.replace(self, rows=unique, values=total.astype(self.dtype))


class RowUses:
    """The rows of one variable that a loss reads while it is differentiated.

    Attributes:
        variable: The variable.
        is_read_whole: Whether it also reads the whole.
    """

    def __init__(self, variable: Any) -> None:
        """No reads so far."""
        self.variable = variable
        self.is_read_whole = False
        self._token: Any = None
        self._found: list[tuple[Any, Any]] = []

    @staticmethod
    def of(variable: Any) -> RowUses | None:
        """What tracks the reads of `variable` here, or None."""
        return _local.active.get(id(variable))

    def track(self, values: Any, rows: Any) -> Any:
        """`values`, the `rows` of the variable; their gradient will be noted."""

        @jax.custom_vjp
        def through(token: Any, values: Any) -> Any:
            del token
            return values

        def forward(token: Any, values: Any) -> Any:
            return through(token, values), None

        def backward(_: None, gradient: Any) -> Any:
            self._found.append((rows, gradient))
            return jnp.zeros(()), jnp.zeros_like(gradient)

        through.defvjp(forward, backward)
        return through(self._token, values)

    def gradient(self, dense: Any) -> Any:
        """The gradient of the variable, of which `dense` is what came of reads of the whole."""
        if not self._found:
            return dense
        rows = jnp.concatenate([rows.reshape(-1) for rows, _ in self._found])
        width = self.variable.shape[1:]
        values = jnp.concatenate([each.reshape((-1, *width)) for _, each in self._found])
        if self.is_read_whole:
            return dense.at[rows].add(values.astype(dense.dtype))
        return RowGradient(rows, values, self.variable.shape)


class _Tracking(threading.local):
    def __init__(self) -> None:
        self.active: dict[int, RowUses] = {}


_local = _Tracking()


@contextlib.contextmanager
def tracking(uses: Sequence[RowUses], tokens: Sequence[Any]) -> Iterator[None]:
    """Tracks reads of rows on this thread; JAX differentiates with respect to the `tokens`."""
    outer = _local.active
    for use, token in zip(uses, tokens, strict=True):
        use._token = token
    _local.active = {**outer, **{id(use.variable): use for use in uses}}
    try:
        yield
    finally:
        _local.active = outer
