"""Writes the state that an object gives of itself as JSON with arrays beside it.

No pickle: what comes back is made of dicts, lists, tuples, numbers, strings, bytes
and NumPy arrays, whatever the file says.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from replicax.checkpoint.errors import CheckpointObjectError, DamagedCheckpointError

Scalar = str | bool | int | float | None


def encode(state: Any, path: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """`state` as JSON; its arrays are added to `arrays`, under names that begin with `path`.

    Raises:
        CheckpointObjectError: If there is something in it that JSON and arrays cannot hold.

    Example:
        >>> encode({"step": 3}, "model", {})
        {'dict': [['step', {'value': 3}]]}
        >>> decode(encode({"step": (3, None)}, "model", {}), {})
        {'step': (3, None)}
    """
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
            pairs.append([key, encode(value, f"{path}/{key}", arrays)])
        return {"dict": pairs}
    if isinstance(state, (list, tuple)):
        items = [encode(item, f"{path}/{i}", arrays) for i, item in enumerate(state)]
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


def decode(node: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
    """The state that `encode` wrote.

    Raises:
        DamagedCheckpointError: If `encode` cannot have written it.
    """
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
    raise DamagedCheckpointError(
        f"a saved state has a part of kind {kind!r}, which this release does not know. Restore "
        "it with the release that wrote it."
    )
