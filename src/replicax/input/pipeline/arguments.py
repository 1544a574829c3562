"""Checks the arguments of `Dataset` methods, before anything is read."""

from __future__ import annotations

import operator
import os
from typing import Any

import jax
import numpy as np

from replicax.core.errors import BatchError
from replicax.core.spec import TensorSpec
from replicax.input.source import INFINITE, UNKNOWN

_MOST_THREADS = 16


def check_callable(fn: Any, method: str) -> None:
    """Refuses what cannot be called."""
    if not callable(fn):
        raise TypeError(f"{method} got {fn!r}; expected a function of an element.")


def whole(value: Any, method: str, argument: str) -> int:
    """`value` as an int."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{method} got {argument}={value!r}; expected an int.") from None


def batch_size(value: Any, method: str, argument: str = "batch_size") -> int:
    """A number of elements that is at least 1."""
    size = whole(value, method, argument)
    if size < 1:
        raise BatchError(f"{method} got {argument}={size}; expected 1 or more.")
    return size


def count(value: Any, method: str) -> int:
    """A number of elements, 0 or more."""
    number = whole(value, method, "count")
    if number < 0:
        raise BatchError(f"{method} got {number}; expected 0 or more, or -1 for all.")
    return number


def buffer_size(value: Any, method: str, *, least: int) -> int:
    """The size of a shuffle buffer; the cardinality of a dataset may be one."""
    size = whole(value, method, "buffer_size")
    if size == UNKNOWN:
        return size
    if size < least:
        hint = " The dataset is endless: give a number." if size == INFINITE else ""
        raise BatchError(
            f"{method} got buffer_size={size}; expected {least} or more: how many elements are "
            f"mixed at a time.{hint}"
        )
    return size


def num_threads(num_parallel_calls: Any) -> int:
    """How many threads call a function; 0 for the consumer's own."""
    if num_parallel_calls is None:
        return 0
    number = whole(num_parallel_calls, "num_parallel_calls", "value")
    if number == -1:
        return min(os.cpu_count() or 1, _MOST_THREADS)
    if number < 1:
        raise BatchError(
            f"num_parallel_calls is {number}; expected 1 or more, data.AUTOTUNE, or None for no "
            "threads."
        )
    return number


def signature_of(output_signature: Any, output_types: Any, output_shapes: Any) -> Any:
    """The declared elements of ``from_generator``: a nest of `TensorSpec`, or None.

    Raises:
        TypeError: If both ways of declaring are mixed, or it is no nest of `TensorSpec`.
    """
    if output_signature is not None:
        if output_types is not None or output_shapes is not None:
            raise TypeError(
                "from_generator got output_signature together with output_types or output_shapes; "
                "give output_signature alone."
            )
        return _normalised(output_signature)
    if output_types is None:
        if output_shapes is not None:
            raise TypeError(
                "from_generator got output_shapes without output_types; give output_signature."
            )
        return None
    return _from_types(output_types, output_shapes)


def _normalised(signature: Any) -> Any:
    leaves, structure = jax.tree_util.tree_flatten(
        signature, is_leaf=lambda x: isinstance(x, (TensorSpec, list))
    )
    for leaf in leaves:
        if not isinstance(leaf, TensorSpec):
            raise TypeError(
                f"output_signature has {leaf!r}; expected TensorSpec, or a tuple or dict of them."
            )
    return jax.tree_util.tree_unflatten(structure, [_stringless(leaf) for leaf in leaves])


def _stringless(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.shape, object, spec.name) if spec.dtype.kind in "US" else spec


def _from_types(types: Any, shapes: Any) -> Any:
    if isinstance(types, (tuple, list)):
        shapes = [None] * len(types) if shapes is None else shapes
        return tuple(_from_types(t, s) for t, s in zip(types, shapes, strict=True))
    if isinstance(types, dict):
        return {key: _from_types(t, (shapes or {}).get(key)) for key, t in types.items()}
    shape = None if shapes is None else tuple(shapes)
    return _stringless(TensorSpec(shape, np.dtype(types)))
