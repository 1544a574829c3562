"""Reads JSON that somebody else wrote, within bounds that are checked before it is parsed.

What comes from a socket, a platform or the environment may be anything. The parser of the standard
library raises four kinds of error for it, or fills the memory; this one raises one kind. Text that
passes can be printed and sent on.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from replicax.core.errors import ReplicaxError

MAX_BYTES = 4 * 2**20
MAX_DEPTH = 100
MAX_DIGITS = 30

_STRINGS = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BRACKETS = re.compile(r"[\[{]+|[\]}]+")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_NEAR = 10
_SHOWN = 60


class JsonError(ReplicaxError, ValueError):
    """Text that is not JSON, or is beyond the bounds; the message says what is wrong with it."""


class RepeatedNameError(JsonError):
    """An object with two entries of one name, of which the second would hide the first."""


def parse(data: bytes | str, *, max_bytes: int = MAX_BYTES) -> Any:
    """The value that `data` describes.

    Args:
        data: JSON, in UTF-8 if it is bytes.
        max_bytes: The longest text to look at.

    Raises:
        JsonError: If it is longer or nested deeper than allowed, not JSON, or has in it what
            cannot be used: half a character, a number without bounds, a name twice.

    Example:
        >>> parse(b'{"rank": 1}')
        {'rank': 1}
        >>> parse("[" * 200_000)
        Traceback (most recent call last):
        ...
        replicax.core.bounded_json.JsonError: is nested deeper than 100
    """
    text = _decoded(data, max_bytes)
    _check_depth(text)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_whole_number,
            parse_float=_number,
            parse_constant=_number,
        )
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - _NEAR) : error.pos + 2 * _NEAR]
        raise JsonError(
            f"is not JSON: {error.msg} at character {error.pos}, near {near!r}"
        ) from error
    if _SURROGATE.search(text):
        _check_characters(json.dumps(value, ensure_ascii=False))
    return value


def shown(value: object, limit: int = _SHOWN) -> str:
    """`value` for a message: as JSON, or else as Python shows it, and cut off.

    Example:
        >>> shown({"a": None}), shown("x" * 100, limit=5)
        ('{"a": null}', '"xxxx...')
    """
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."


def _decoded(data: bytes | str, max_bytes: int) -> str:
    if len(data) > max_bytes:
        raise JsonError(f"is {len(data)} bytes long, more than {max_bytes}")
    if isinstance(data, str):
        _check_characters(data)
        return data
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise JsonError(f"is not UTF-8: {error.reason} at byte {error.start}") from error


def _check_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start : error.start + 1]
        raise JsonError(f"has half a character in it: {half!r}") from error


def _check_depth(text: str) -> None:
    depth = 0
    for match in _BRACKETS.finditer(_STRINGS.sub("", text)):
        run = match[0]
        depth += len(run) if run[0] in "[{" else -len(run)
        if depth > MAX_DEPTH:
            raise JsonError(f"is nested deeper than {MAX_DEPTH}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise RepeatedNameError(f"has {twice[:_SHOWN]!r} twice in one object")
    return result


def _whole_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise JsonError(f"has a number of {len(digits)} digits, more than {MAX_DIGITS}")
    return int(digits)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise JsonError(f"has the number {shown(text)}, which is not finite")
    return number
