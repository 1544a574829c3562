"""Compares Python numbers by their bits: a compiled program depends on all of them."""

from __future__ import annotations

import struct
from collections.abc import Hashable
from typing import Any

EXACT_TYPES = (bool, int, float, complex, str, bytes, type(None))


def exact(value: Any) -> Hashable:
    """Equal for values of `EXACT_TYPES` that no program could tell apart.

    Example:
        >>> exact(0.0) == exact(-0.0), exact(1) == exact(1.0), exact(1) == exact(True)
        (False, False, False)
        >>> exact(float("nan")) == exact(float("nan"))
        True
    """
    kind = type(value)
    if kind is float:
        return kind, struct.pack("d", value)
    if kind is complex:
        return kind, struct.pack("dd", value.real, value.imag)
    return kind, value


def shown(key: Any) -> str:
    """The value of an `exact` key, as Python prints it."""
    kind, value = key
    if kind is float:
        return repr(struct.unpack("d", value)[0])
    return repr(complex(*struct.unpack("dd", value)) if kind is complex else value)
