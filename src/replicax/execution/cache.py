"""Keys that recognise the same function and the same objects, without keeping them alive.

A function defined anew in every epoch has the same code and the same captured
objects, and must not be compiled anew.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from replicax.core.exact import EXACT_TYPES, exact
from replicax.execution.closures import captured


def value_key(value: Any) -> Hashable:
    """Equal for equal numbers and strings, for the same functions, and for the same objects."""
    return exact(value) if type(value) in EXACT_TYPES else captured(value).key


def function_key(fn: Any) -> Hashable:
    """Equal for functions with the same code, defaults, self and captured objects.

    Example:
        >>> def make(n):
        ...     return lambda x: x + n
        >>> function_key(make(1)) == function_key(make(1))
        True
        >>> function_key(make(1)) == function_key(make(2))
        False
    """
    return captured(fn).key
