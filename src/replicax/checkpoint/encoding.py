"""Writes the state that an object gives of itself as JSON with arrays beside it.

No pickle: what comes back is made of dicts, lists, tuples, numbers, strings, bytes
and NumPy arrays, whatever the file says.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from types import NoneType
from typing import Any

import jax
import numpy as np

from replicax.checkpoint.errors import CheckpointObjectError

Scalar = str | bool | int | float | None
SCALARS = (str, bool, int, float, NoneType)
MAX_DEPTH = 200
"""How deeply dicts and lists of a state may be nested; Python's stack ends not far above."""

_DTYPE = re.compile(r"[a-z0-9_]+")
_MOST_DIMS = 32  # NumPy has no more
_MOST_ELEMENTS = 1 << 58  # more cannot be addressed


def encode(state: Any, path: str, arrays: dict[str, Any], *, depth: int = 0) -> dict[str, Any]:
    """`state` as JSON; its arrays are added to `arrays`, under names that begin with `path`.

    Raises:
        CheckpointObjectError: If there is something in it that JSON and arrays cannot hold.

    Example:
        >>> encode({"step": 3}, "model", {})
        {'dict': [['step', {'value': 3}]]}
        >>> decode(encode({"step": (3, None)}, "model", {}), {})
        {'step': (3, None)}
    """
    if depth > MAX_DEPTH:
        raise CheckpointObjectError(
            f"the state of the object is nested more than {MAX_DEPTH} deep at "
            f"{path[:100]!r}; perhaps it contains itself. Return a flatter state."
        )
    if isinstance(state, Scalar):
        return {"value": state}
    if isinstance(state, (jax.Array, np.ndarray, np.generic)):
        name = f"{path}:{len(arrays)}"
        arrays[name] = _numeric(state, path)
        return {"array": name, "shape": list(np.shape(state)), "dtype": np.dtype(state.dtype).name}
    if isinstance(state, bytes):
        return {"bytes": base64.b64encode(state).decode("ascii")}
    if isinstance(state, Mapping):
        pairs = []
        for key, value in state.items():
            if type(key) not in (str, int):
                raise CheckpointObjectError(
                    f"the state of the object at {path!r} has the dict key {key!r}; a checkpoint "
                    "holds keys that are strings or ints."
                )
            pairs.append([key, encode(value, f"{path}/{key}", arrays, depth=depth + 1)])
        return {"dict": pairs}
    if isinstance(state, (list, tuple)):
        items = [
            encode(item, f"{path}/{i}", arrays, depth=depth + 1) for i, item in enumerate(state)
        ]
        return {"list" if isinstance(state, list) else "tuple": items}
    raise CheckpointObjectError(
        f"the state of the object has {type(state).__name__} {state!r} at {path!r}; a checkpoint "
        "holds dicts, lists, tuples, numbers, strings, bytes and arrays. Return only these from "
        "its state method."
    )


def _numeric(array: Any, path: str) -> Any:
    if isinstance(array, jax.Array) and jax.numpy.issubdtype(array.dtype, jax.dtypes.extended):
        raise CheckpointObjectError(
            f"the state of the object has a random key at {path!r}. Return "
            "jax.random.key_data(key), and wrap it again on loading."
        )
    array = np.asarray(array)
    if array.dtype.hasobject or array.dtype.kind in "USMm":
        raise CheckpointObjectError(
            f"the state of the object has an array of dtype {array.dtype} at {path!r}; a "
            "checkpoint holds arrays of numbers. Return strings and objects as lists."
        )
    return array


def inlined(node: Mapping[str, Any], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """An encoded state that needs no `arrays` beside it.

    Example:
        >>> own = {}
        >>> node = encode({"seen": np.arange(3, dtype=np.int8)}, "model", own)
        >>> decode(inlined(node, own), {})
        {'seen': array([0, 1, 2], dtype=int8)}
    """
    kind, content = next(iter(node.items()))
    if kind == "array":
        array = np.asarray(arrays[content], order="C")
        text = base64.b64encode(array.tobytes()).decode("ascii")
        return {"inline": text, "shape": list(array.shape), "dtype": array.dtype.name}
    if kind == "dict":
        return {kind: [[key, inlined(child, arrays)] for key, child in content]}
    if kind in ("list", "tuple"):
        return {kind: [inlined(child, arrays) for child in content]}
    return dict(node)


def array_names(node: Mapping[str, Any]) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and dtype of every array that an encoded state refers to."""
    kind, content = next(iter(node.items()))
    if kind == "array":
        return [(content, tuple(node["shape"]), node["dtype"])]
    if kind == "dict":
        return [name for _, child in content for name in array_names(child)]
    if kind in ("list", "tuple"):
        return [name for child in content for name in array_names(child)]
    return []


def check_state(node: Any, where: str, *, depth: int = 0) -> None:
    """Checks that `encode` or `inlined` can have written this.

    Raises:
        ValueError: If not; begins with `where`.

    Example:
        >>> check_state({"list": [{"value": 3}]}, "here")
        >>> check_state({"list": [3]}, "here")
        Traceback (most recent call last):
            ...
        ValueError: here has a part 3
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"{where} is nested more than {MAX_DEPTH} deep")
    if not isinstance(node, dict) or not node:
        raise ValueError(f"{where} has a part {str(node)[:100]}")
    kind, content = next(iter(node.items()))
    is_array = kind in ("array", "inline")
    if [*node] != ([kind, "shape", "dtype"] if is_array else [kind]):
        raise ValueError(f"{where} has a part with the fields {[*node]}"[:200])
    match kind, content:
        case "value", str() | bool() | int() | float() | None:
            return
        case "array", str():
            check_array(node["shape"], node["dtype"], where)
            return
        case "inline", str():
            check_array(node["shape"], node["dtype"], where)
            size = math.prod(node["shape"]) * np.dtype(node["dtype"]).itemsize
            if len(base64.b64decode(content, validate=True)) == size:
                return
        case "bytes", str():
            base64.b64decode(content, validate=True)
            return
        case "dict", list():
            are_pairs = all(isinstance(pair, list) and len(pair) == 2 for pair in content)
            if are_pairs and all(type(key) in (str, int) for key, _ in content):
                for _, child in content:
                    check_state(child, where, depth=depth + 1)
                return
        case "list" | "tuple", list():
            for child in content:
                check_state(child, where, depth=depth + 1)
            return
    raise ValueError(f"{where} has a part of kind {kind!r} that is {str(content)[:100]}")


def check_array(shape: Any, dtype: Any, where: str) -> None:
    """Checks what is said of an array.

    Raises:
        ValueError: If there is no such array; begins with `where`.
    """
    is_shape = isinstance(shape, list) and len(shape) <= _MOST_DIMS
    is_shape = is_shape and all(type(dim) is int and 0 <= dim < _MOST_ELEMENTS for dim in shape)
    if not is_shape or math.prod(dim for dim in shape if dim) > _MOST_ELEMENTS:
        raise ValueError(f"{where} has the shape {str(shape)[:100]}")
    if not isinstance(dtype, str) or not _DTYPE.fullmatch(dtype) or not _is_numeric(dtype):
        raise ValueError(f"{where} has the dtype {str(dtype)[:100]!r}")


def _is_numeric(name: str) -> bool:
    try:
        dtype = np.dtype(name)
    except TypeError:
        return False
    return dtype.name == name and dtype.kind not in "OUSMm" and dtype.type is not np.void


def decode(node: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
    """The state that `encode` wrote, after `check_state`."""
    kind, content = next(iter(node.items()))
    match kind:
        case "value":
            return content
        case "array":
            return arrays[content]
        case "inline":
            array = np.frombuffer(base64.b64decode(content), np.dtype(node["dtype"]))
            return array.reshape(node["shape"]).copy()
        case "bytes":
            return base64.b64decode(content)
        case "dict":
            return {key: decode(child, arrays) for key, child in content}
        case "list":
            return [decode(child, arrays) for child in content]
        case "tuple":
            return tuple(decode(child, arrays) for child in content)
    raise AssertionError(f"check_state lets through a part of kind {kind!r}")
