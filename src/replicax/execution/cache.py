"""Keys that recognise the same function and the same objects, without keeping them alive.

A function defined anew in every epoch has the same code and the same captured
objects, and must not be compiled anew.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Hashable
from typing import Any

_BY_VALUE = (bool, int, float, complex, str, bytes, type(None))


class ById:
    """A key that is equal only for the very same, still living object."""

    __slots__ = ("_id", "_strong", "_weak")

    def __init__(self, target: object) -> None:
        """A key for `target`, which is held weakly if it can be."""
        self._id = id(target)
        self._strong: object = None
        self._weak: weakref.ref[Any] | None = None
        try:
            self._weak = weakref.ref(target)
        except TypeError:
            self._strong = target

    def target(self) -> object:
        """The object, or None when it is gone."""
        return self._strong if self._weak is None else self._weak()

    def __hash__(self) -> int:
        return self._id

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ById) or self._id != other._id:
            return False
        target = self.target()
        return target is not None and target is other.target()

    def __repr__(self) -> str:
        target = self.target()
        return "<object that is gone>" if target is None else f"<{type(target).__name__} object>"


def value_key(value: Any) -> Hashable:
    """Equal for equal numbers and strings, for the same functions, and for the same objects."""
    if type(value) in _BY_VALUE:
        return type(value), value
    if type(value) is tuple:
        return tuple, tuple(value_key(item) for item in value)
    if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
        return function_key(value)
    return ById(value)


def function_key(fn: Any, _seen: tuple[int, ...] = ()) -> Hashable:
    """Equal for functions with the same code, defaults, self and captured objects.

    Example:
        >>> def make(n):
        ...     return lambda x: x + n
        >>> function_key(make(1)) == function_key(make(1))
        True
        >>> function_key(make(1)) == function_key(make(2))
        False
    """
    if isinstance(fn, types.MethodType):
        return "method", function_key(fn.__func__, _seen), ById(fn.__self__)
    if isinstance(fn, functools.partial):
        keywords = tuple((name, value_key(value)) for name, value in sorted(fn.keywords.items()))
        return "partial", function_key(fn.func, _seen), tuple(map(value_key, fn.args)), keywords
    if not isinstance(fn, types.FunctionType) or id(fn.__code__) in _seen:
        return ById(fn)
    seen = (*_seen, id(fn.__code__))
    cells = tuple(_cell_key(cell, seen) for cell in fn.__closure__ or ())
    if fn.__defaults__ is None and fn.__kwdefaults__ is None:
        return fn.__code__, id(fn.__globals__), cells
    keywords = tuple(
        (name, value_key(value)) for name, value in sorted((fn.__kwdefaults__ or {}).items())
    )
    defaults = tuple(map(value_key, fn.__defaults__ or ()))
    return fn.__code__, id(fn.__globals__), cells, defaults, keywords


def _cell_key(cell: types.CellType, seen: tuple[int, ...]) -> Hashable:
    try:
        value = cell.cell_contents
    except ValueError:
        return "empty"
    if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
        return function_key(value, seen)
    return value_key(value)
