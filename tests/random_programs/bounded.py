"""Numbers with a bound of the rounding error, and with tangents.

The reference computes in float64. Each number knows its dtype and how far a correct program may
be from it: not at all where every intermediate result is exact in the dtype, which holds for most
of what is drawn. So a wrong number cannot hide in a tolerance.

A number may have tangents, derivatives by a row of seeds. Beside each is the sum of the absolute
values of all paths that lead to it, which bounds rounding in forward and in reverse mode alike.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int32": np.dtype(np.int32),
}
BITS = {"float32": 24, "float16": 11, "bfloat16": 8, "int32": 31}
LIMITS = {"float32": 1e9, "float16": 6e4, "bfloat16": 1e9, "int32": 1e9}
TANGENT_LIMITS = {"float32": 1e9, "float16": 4e3, "bfloat16": 1e9}
SMALLEST = {"float32": 1e-30, "float16": 2.0**-23, "bfloat16": 1e-30, "int32": 0.0}


class Rejected(Exception):
    """The program leaves the range in which its results are well defined; draw another one."""


def epsilon(dtype):
    return 2.0 ** (1 - BITS[dtype])


def is_exact(values, dtype):
    with np.errstate(over="ignore", invalid="ignore"):  # too large for the type
        return values.astype(DTYPES[dtype]).astype(np.float64) == values


def _on_grid(magnitude, dtype, spare):
    """Whether sums of terms with this total magnitude are exact in any order."""
    scaled = 4 * magnitude
    return (scaled == np.round(scaled)) & (scaled <= 2.0 ** (BITS[dtype] - spare))


class Number:
    """An array with the bound `error`, and maybe tangents, which have the seeds in front."""

    __slots__ = ("dtype", "error", "paths", "tangent_error", "tangents", "value")

    def __init__(self, value, dtype, error=0.0, tangents=None, paths=None, tangent_error=0.0):
        self.value = np.asarray(value, np.float64)
        self.dtype = dtype
        error = np.broadcast_to(np.asarray(error, np.float64), self.value.shape)
        exact = (error == 0) & is_exact(self.value, dtype)
        if dtype == "int32" and not exact.all():
            raise Rejected(f"{self.value} is no exact integer")
        rounding = epsilon(dtype) * (np.abs(self.value) + error) + SMALLEST[dtype]
        self.error = np.where(exact, 0.0, error + rounding)
        if self.value.size and np.max(np.abs(self.value)) > LIMITS[dtype]:
            raise Rejected(f"{self.value} is too large for {dtype}")
        self.tangents = self.paths = self.tangent_error = None
        if tangents is None or dtype == "int32":
            return
        shape = tangents.shape[:1] + self.value.shape
        self.tangents = np.broadcast_to(tangents, shape)
        self.paths = np.broadcast_to(paths, shape)
        known = np.broadcast_to(tangent_error, shape)
        exact = (known == 0) & _on_grid(self.paths, dtype, 1)
        exact &= 4 * self.tangents == np.round(4 * self.tangents)
        rounding = 2 * epsilon(dtype) * self.paths + SMALLEST[dtype]
        self.tangent_error = np.where(exact, 0.0, known + rounding)
        if self.paths.size and np.max(self.paths) > TANGENT_LIMITS[dtype]:
            raise Rejected("the gradient is too large")

    @property
    def shape(self):
        return self.value.shape

    def is_exact(self):
        return not self.error.any()

    def _row(self):
        """Tangents, paths and errors, or zeros that broadcast."""
        if self.tangents is None:
            return 0.0, 0.0, 0.0
        lift = lambda a: a.reshape(a.shape[:1] + (1,) * (1 - self.value.ndim) + a.shape[1:])  # noqa: E731
        return lift(self.tangents), lift(self.paths), lift(self.tangent_error)

    def _combined(self, other, value, error, linear):
        """The result of an operation of two; `linear(own, others)` for each row."""
        if self.tangents is None and other.tangents is None:
            return Number(value, self.dtype, error)
        tangents, paths, known = linear(self._row(), other._row())
        shape = (tangents.shape[0], *(np.shape(value) or (1,)))
        rows = [np.broadcast_to(row, shape) for row in (tangents, paths, known)]
        if not np.shape(value):
            rows = [row[:, 0] for row in rows]
        return Number(value, self.dtype, error, *rows)

    def plus(self, other, sign=1):
        value = self.value + sign * other.value
        return self._combined(
            other,
            value,
            self.error + other.error,
            lambda own, others: (own[0] + sign * others[0], own[1] + others[1], own[2] + others[2]),
        )

    def times(self, other):
        a, b, ea, eb = self.value, other.value, self.error, other.error

        def linear(own, others):
            tangents = a * others[0] + b * own[0]
            paths = np.abs(a) * others[1] + np.abs(b) * own[1]
            known = (np.abs(a) + ea) * others[2] + ea * np.abs(others[0])
            known = known + (np.abs(b) + eb) * own[2] + eb * np.abs(own[0])
            return tangents, paths, known

        return self._combined(other, a * b, np.abs(a) * eb + np.abs(b) * ea + ea * eb, linear)

    def total(self):
        return total([Number._element(self, i) for i in range(self.value.size)], self.dtype)

    def _element(self, index):
        row = (None, None, 0.0)
        if self.tangents is not None:
            row = (self.tangents[:, index], self.paths[:, index], self.tangent_error[:, index])
        return Number(self.value[index], self.dtype, self.error[index], *row)

    def spread(self, size):
        return self.plus(Number(np.zeros(size), self.dtype))

    def cast(self, dtype):
        if dtype == self.dtype:
            return self
        row = (None, None, 0.0)
        if self.tangents is not None and self.dtype != "int32":
            row = (self.tangents, self.paths, self.tangent_error)
        return Number(self.value, dtype, self.error, *row)

    def without_tangents(self):
        return Number(self.value, self.dtype, self.error)

    def scaled_tangents(self, source, factor):
        """This value with the tangents of `source` times `factor`."""
        if source.tangents is None:
            return self.without_tangents()
        rows = source.tangents * factor, source.paths * abs(factor), source.tangent_error * factor
        return Number(self.value, self.dtype, self.error, *rows)

    def seeded(self, first_seed, num_seeds):
        """This value with tangents: each element is one seed, from `first_seed` on."""
        size = self.value.size
        rows = np.zeros((num_seeds, size))
        rows[first_seed + np.arange(size), np.arange(size)] = 1.0
        rows = rows.reshape((num_seeds, *self.shape))
        return Number(self.value, self.dtype, self.error, rows, rows, 0.0 * rows)


def total(terms, dtype, divisor=1):
    """The sum of numbers of one shape, in any order, or the mean if there is a divisor.

    A mean is computed in float32 at least and rounded once.
    """
    if not terms:
        return Number(0.0, dtype)
    value = sum(term.value for term in terms)
    error = sum(term.error for term in terms)
    magnitude = sum(np.abs(term.value) + term.error for term in terms)
    wide = dtype if divisor == 1 or dtype == "int32" else "float32"
    quarters = np.all([4 * term.value == np.round(4 * term.value) for term in terms], axis=0)
    exact = quarters & (error == 0) & _on_grid(magnitude, wide, 0)
    if wide != "int32":
        error = np.where(exact, 0.0, error + len(terms) * epsilon(wide) * magnitude)
    if divisor & (divisor - 1):  # XLA multiplies by the reciprocal
        error = error + epsilon(wide) * magnitude
    rows = (None, None, 0.0)
    with_tangents = [term for term in terms if term.tangents is not None]
    if with_tangents:
        rows = tuple(
            sum(getattr(term, name) for term in with_tangents) / divisor
            for name in ("tangents", "paths", "tangent_error")
        )
    if dtype != "int32" and wide == dtype and magnitude.size and np.max(magnitude) > LIMITS[dtype]:
        raise Rejected("a partial sum may be too large")
    return Number(value / divisor, dtype, error / divisor, *rows)
