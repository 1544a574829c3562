"""What a manifest may say.

A checksum tells that a manifest is as somebody wrote it, not that it makes sense. Every field
is looked at here, before anything follows from it. Pure: reads no files. `files` is the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from replicax.checkpoint.encoding import SCALARS, check_array, check_state
from replicax.checkpoint.entries import StateEntry, ValueEntry, VariableEntry

_FIELDS = frozenset({"version", "saved", "data", "records", "aliases", "files"})
_DATA = re.compile(r"data-[0-9a-f]{16}")
_LATEST = 1e12  # seconds since 1970; not so for NaN and infinity
_CHECKSUM = re.compile(r"[0-9a-f]{8}")


def check(content: Any) -> None:
    """Checks all of a manifest's content.

    Raises:
        ValueError: If it is not what a save writes; says where.

    Example:
        >>> check({"version": 2})
        Traceback (most recent call last):
            ...
        ValueError: the manifest has the fields ['version'] instead of ['aliases', 'data', ...
    """
    _require_fields(content, "the manifest", _FIELDS)
    _require(is_count(content["version"]), "version", content["version"])
    _require(is_time(content["saved"]), "saved", content["saved"])
    data = content["data"]
    _require(isinstance(data, str) and _DATA.fullmatch(data) is not None, "data", data)
    for part in ("records", "aliases", "files"):
        _require(isinstance(content[part], dict), part, content[part])
    for name, entry in content["files"].items():
        _check_file(name, entry)
    for key, record in content["records"].items():
        _check_record(f"records[{key!r}]", record)
    for key, target in content["aliases"].items():
        is_known = isinstance(target, str) and target in content["records"]
        _require(is_known and key not in content["records"], f"aliases[{key!r}]", target)


def check_states(states: Any, records: Mapping[str, Any]) -> None:
    """Checks the file with the states of one worker against the records.

    Raises:
        ValueError: If it is not what a save writes; says where.
    """
    expected = frozenset(key for key, record in records.items() if "workers" in record)
    _require_fields(states, "the file", expected)
    for key, state in states.items():
        check_state(state, f"the state of {key!r}")


def is_time(value: Any) -> bool:
    """Whether this can be a number of seconds since 1970."""
    return type(value) in (int, float) and 0 <= value < _LATEST


def is_count(value: Any, *, least: int = 0) -> bool:
    """Whether this is an int, no bool, of at least so much."""
    return type(value) is int and value >= least


def _check_file(name: str, entry: Any) -> None:
    steps = name.split("/")
    is_inside = "\0" not in name and not any(step in ("", ".", "..") for step in steps)
    _require(is_inside, "the name of a file", name)
    is_pair = isinstance(entry, list) and len(entry) == 2
    _require(is_pair and is_count(entry[0]), f"files[{name!r}]", entry)
    is_checksum = isinstance(entry[1], str) and _CHECKSUM.fullmatch(entry[1]) is not None
    _require(is_checksum, f"files[{name!r}]", entry)


def _check_record(where: str, record: Any) -> None:
    kind = record.get("kind") if isinstance(record, dict) else None
    known = _KINDS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise ValueError(f"{where} is of kind {kind!r} instead of one of {sorted(_KINDS)}")
    known(where, record)


def _check_variable(where: str, record: dict[str, Any]) -> None:
    own = frozenset({"kind", "shape", "dtype", "has_value"})
    has_copies = "copies" in record
    _require_fields(record, where, own | {"copies"} if has_copies else own)
    check_array(record["shape"], record["dtype"], where)
    _require(type(record["has_value"]) is bool, f"{where}: has_value", record["has_value"])
    if has_copies:
        _require(is_count(record["copies"], least=1), f"{where}: copies", record["copies"])
    elif not record["has_value"]:
        raise ValueError(f"{where} has neither a value nor copies")


def _check_value(where: str, record: dict[str, Any]) -> None:
    _require_fields(record, where, frozenset({"kind", "value"}))
    _require(type(record["value"]) in SCALARS, f"{where}: value", record["value"])


def _check_saved_state(where: str, record: dict[str, Any]) -> None:
    if "workers" in record:
        _require_fields(record, where, frozenset({"kind", "workers"}))
        _require(is_count(record["workers"], least=2), f"{where}: workers", record["workers"])
    else:
        _require_fields(record, where, frozenset({"kind", "state"}))
        check_state(record["state"], where)


_KINDS: dict[str, Callable[[str, dict[str, Any]], None]] = {
    VariableEntry.kind: _check_variable,
    ValueEntry.kind: _check_value,
    StateEntry.kind: _check_saved_state,
}


def _require(is_right: bool, where: str, value: Any) -> None:
    if not is_right:
        raise ValueError(f"{where} is {_short(value)}")


def _require_fields(value: Any, where: str, fields: frozenset[str]) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {_short(value)} instead of a dict")
    if value.keys() != fields:
        found, expected = _short(sorted(value)), _short(sorted(fields))
        raise ValueError(f"{where} has the fields {found} instead of {expected}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
