"""``tf.print``: prints values, also those that exist only when a compiled step runs."""

from __future__ import annotations

import builtins
import sys
import typing

import jax
import numpy as np
from jax.core import Tracer as _Tracer

from replicax.core import nest as _nest
from replicax.values.distributed import PerReplica as _PerReplica
from replicax.values.operators import plain as _plain

__all__ = ["print"]


def print(
    *inputs: typing.Any,
    output_stream: typing.Any = None,
    summarize: int = 3,
    sep: str = " ",
    end: str = "\n",
    name: str | None = None,
) -> None:
    """Prints `inputs` when the step runs; in a replica, once for each replica.

    Args:
        *inputs: Strings, numbers, arrays, variables, and nests of them.
        output_stream: A file object; ``sys.stderr`` if None.
        summarize: How many elements to show at the start and the end of each dim; -1 for all.
        sep: Between the inputs.
        end: After the last.
        name: Ignored.

    Raises:
        TypeError: If `output_stream` cannot be written to.

    Example:
        >>> import jax.numpy as jnp
        >>> print("loss:", jnp.arange(8), output_stream=sys.stdout)
        loss: [0 1 2 ... 5 6 7]
    """
    stream = sys.stderr if output_stream is None else output_stream
    if not callable(getattr(stream, "write", None)):
        raise TypeError(
            f"tf.print got output_stream={output_stream!r}; expected a file object. Open the file "
            "yourself, or write to sys.stdout."
        )
    leaves, structure = _nest.flatten(
        _nest.map_leaves(
            lambda leaf: leaf if isinstance(leaf, _PerReplica) else _plain(leaf), inputs
        )
    )
    is_array = [isinstance(leaf, jax.Array) for leaf in leaves]
    arrays = [leaf for leaf, array in zip(leaves, is_array, strict=True) if array]
    others = [None if array else leaf for leaf, array in zip(leaves, is_array, strict=True)]

    def write(*values: typing.Any) -> None:
        waiting = iter(values)
        merged = [
            next(waiting) if array else other for array, other in zip(is_array, others, strict=True)
        ]
        shown = [_Shown(leaf, summarize) for leaf in merged]
        parts = map(str, _nest.unflatten(structure, shown))
        builtins.print(*parts, sep=sep, end=end, file=stream, flush=True)

    if any(isinstance(array, _Tracer) for array in arrays):
        jax.debug.callback(write, *arrays)
    else:
        write(*arrays)


class _Shown:
    """A leaf that a container shows without quotes, and an array in few elements."""

    def __init__(self, value: typing.Any, summarize: int) -> None:
        self._value = value
        self._summarize = summarize

    def __repr__(self) -> str:
        if not isinstance(self._value, jax.Array | np.ndarray):
            return str(self._value)
        array = np.asarray(self._value)
        if self._summarize < 0:
            return np.array2string(array, threshold=array.size + 1)
        many = 2 * self._summarize
        return np.array2string(array, threshold=many, edgeitems=self._summarize)
