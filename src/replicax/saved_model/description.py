"""What a saved model says of itself: `saved_model.json`, and the names of the files beside it.

A saved model is a checkpoint with more files in its data folder. The manifest of the checkpoint
lists them with their checksums. A checksum tells that a file is as somebody wrote it, not that it
makes sense, so every field is looked at here before anything follows from it. Pure: reads no files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from replicax.checkpoint.manifest import is_count
from replicax.core import bounded_json
from replicax.core.enums import VariableAggregation, VariableSynchronization
from replicax.saved_model.structure import from_json

FILE = "saved_model.json"
VERSION = 1

_FUNCTION = {
    *("arguments", "differentiable", "inputs", "outputs", "platforms", "read", "results"),
    "written",
}
_VARIABLE = {"aggregation", "name", "synchronization", "trainable"}
_NAME = re.compile(r"[A-Za-z_]\w{0,99}")
_MOST_BYTES = 1 << 28


def program_file(name: str) -> str:
    """The file of a function for ``jax.export.deserialize``."""
    return f"functions/{name}.jax_export"


def stablehlo_file(name: str) -> str:
    """The file of a function for programs that run StableHLO themselves."""
    return f"functions/{name}.stablehlo"


def is_name(name: Any) -> bool:
    """Whether a function may have this name: one that is also a name in Python.

    Example:
        >>> is_name("predict"), is_name("../predict")
        (True, False)
    """
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def encode(functions: Mapping[str, Any], variables: Mapping[str, Any]) -> bytes:
    """The file's content."""
    content = {"version": VERSION, "functions": functions, "variables": variables}
    return json.dumps(content, indent=1, sort_keys=True).encode()


def parse(text: bytes) -> dict[str, Any]:
    """The content of the file, every field of which has been checked.

    Raises:
        ValueError: If it is not what a save writes; says where.

    Example:
        >>> parse(b'{"version": 7}')
        Traceback (most recent call last):
            ...
        ValueError: it has format 7; this release reads format 1
    """
    content = bounded_json.parse(text, max_bytes=_MOST_BYTES)
    if not isinstance(content, dict):
        raise ValueError(f"it is {_short(content)} instead of a dict")
    if content.get("version") != VERSION:
        raise ValueError(f"it has format {content.get('version')}; this release reads format 1")
    _require_fields(content, "it", {"version", "functions", "variables"})
    functions, variables = content["functions"], content["variables"]
    for part, value in (("functions", functions), ("variables", variables)):
        _require(isinstance(value, dict), part, value)
    for key, properties in variables.items():
        _check_variable(f"variables[{key!r}]", properties)
    for name, function in functions.items():
        _require(is_name(name), "the name of a function", name)
        _check_function(f"functions[{name!r}]", function, variables)
    return content


def _check_variable(where: str, properties: Any) -> None:
    _require_fields(properties, where, _VARIABLE)
    _require(isinstance(properties["name"], str), f"{where}: name", properties["name"])
    _require(type(properties["trainable"]) is bool, f"{where}: trainable", properties["trainable"])
    for field, kind in (
        ("aggregation", VariableAggregation),
        ("synchronization", VariableSynchronization),
    ):
        value = properties[field]
        _require(isinstance(value, str) and value in kind.__members__, f"{where}: {field}", value)


def _check_function(where: str, function: Any, variables: Mapping[str, Any]) -> None:
    _require_fields(function, where, _FUNCTION)
    _require(type(function["differentiable"]) is bool, where, function["differentiable"])
    platforms = function["platforms"]
    _require(_is_list_of(str, platforms) and len(platforms) > 0, f"{where}: platforms", platforms)
    for field in ("read", "written"):
        keys = function[field]
        is_right = _is_list_of(str, keys) and len(set(keys)) == len(keys)
        _require(is_right and set(keys) <= variables.keys(), f"{where}: {field}", keys)
    for field, nest in (("arguments", "inputs"), ("results", "outputs")):
        leaves = function[field]
        _require(isinstance(leaves, list), f"{where}: {field}", leaves)
        for leaf in leaves:
            _check_array(f"{where}: {field}", leaf)
        try:
            rest = iter(leaves)
            value = from_json(function[nest], rest)
        except ValueError as error:
            raise ValueError(f"{where}: {nest}: {error}") from None
        _require(next(rest, None) is None, f"{where}: {nest}", function[nest])
        if nest == "inputs":
            _require(isinstance(value, tuple), f"{where}: inputs", function[nest])


def _check_array(where: str, array: Any) -> None:
    _require_fields(array, where, {"dtype", "shape"})
    _require(isinstance(array["shape"], list), where, array["shape"])
    for size in array["shape"]:
        _require(size is None or isinstance(size, str) or is_count(size), where, size)
    try:
        np.dtype(array["dtype"])
    except (TypeError, ValueError):
        raise ValueError(f"{where} has the dtype {_short(array['dtype'])}") from None


def _is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is kind for item in value)


def _require(is_right: bool, where: str, value: Any) -> None:
    if not is_right:
        raise ValueError(f"{where} is {_short(value)}")


def _require_fields(value: Any, where: str, fields: set[str]) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {_short(value)} instead of a dict")
    if value.keys() != fields:
        raise ValueError(f"{where} has the fields {_short(sorted(value))}, not {sorted(fields)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
