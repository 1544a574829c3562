"""Names that the documents place under ``tf.math``; the rest is in ``jax.numpy``."""

import typing

from replicax.tf.equivalents import missing as _missing
from replicax.tf.ops import (
    add,
    add_n,
    divide,
    multiply,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_sum,
    square,
    subtract,
)

__all__ = [
    "add",
    "add_n",
    "divide",
    "multiply",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_sum",
    "square",
    "subtract",
]


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.math", name)
