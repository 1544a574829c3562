"""What a function brings along beside its arguments, and how to give it other values.

A function brings the names it captured, its defaults, what a method is bound to and what a
partial fixes, also those of the functions and containers among them. `captured_by` lists all
of it; `with_captured` makes the same function with other values in some of the places.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax

from replicax.core import nest
from replicax.engine.protocols import CompiledCallable

_Jitted = type(jax.jit(lambda: None))
_NOTHING: Any = type("Nothing", (), {"__repr__": lambda self: "nothing"})()


@dataclasses.dataclass(frozen=True, slots=True)
class CapturedValue:
    """One thing that a function brings.

    Attributes:
        path: Where it is: the captured name, behind the names of the functions around it.
        value: What it is; the code of a function and the structure of a container count too.
        is_replaceable: Whether `with_captured` can put another value in its place.
        container: The container, if this is the structure of one.
        num_inside: How many of those that follow are in it.
    """

    path: str
    value: Any
    is_replaceable: bool
    container: Any = None
    num_inside: int = 0


def captured_by(fn: Callable[..., Any]) -> list[CapturedValue]:
    """Everything that `fn` brings, always in the same order.

    Example:
        >>> def make(n):
        ...     return lambda x, factor=2: factor * x + n
        >>> [(c.path, c.value) for c in captured_by(make(5))[1:]]
        [('n', 5), ('factor', 2)]
    """
    walk = _CapturedWalk({})
    walk.visit(fn, "")
    return walk.found


def with_captured(fn: Callable[..., Any], values: Mapping[str, Any]) -> Callable[..., Any]:
    """`fn` with other values; the functions it brings are copied, too.

    Args:
        fn: The function.
        values: By the `CapturedValue.path` of what they replace.

    Example:
        >>> def make(n):
        ...     return lambda x: x + n
        >>> with_captured(make(5), {"n": 7})(1)
        8
    """
    return _CapturedWalk(values).visit(fn, "") if values else fn


class _CapturedWalk:
    """Goes through a function once, and copies it where there are other values for it."""

    def __init__(self, values: Mapping[str, Any], jitted: frozenset[int] = frozenset()) -> None:
        self.found: list[CapturedValue] = []
        self._values = values
        self._jitted = jitted  # the ids of the jitted functions that this walk is inside of
        self._functions: dict[int, types.FunctionType] = {}  # by id, what became of them
        self._cells: dict[int, types.CellType] = {}
        self._seen: set[int] = set()  # the ids of cells

    def visit(self, value: Any, path: str) -> Any:
        """What `value` becomes: itself, if there are no other values."""
        if isinstance(value, types.FunctionType):
            return self._function(value, path)
        if isinstance(value, types.MethodType):
            bound = self.visit(value.__self__, _join(path, "self"))
            return self._made(value, types.MethodType, self.visit(value.__func__, path), bound)
        if isinstance(value, functools.partial):
            args, keywords = self.visit((value.args, value.keywords), path)
            make = functools.partial(type(value), **keywords)
            return self._made(value, make, self.visit(value.func, path), *args)
        if isinstance(value, CompiledCallable):
            return self._made(value, value._with_function, self.visit(value.python_function, path))
        if isinstance(value, _Jitted):
            return self._jitted_function(value, path)
        return self._nest(value, path)

    def _function(self, fn: types.FunctionType, path: str) -> types.FunctionType:
        if id(fn) in self._functions:  # also where it calls itself
            return self._functions[id(fn)]
        code, cells = fn.__code__, fn.__closure__ or ()
        become = [self._cells.setdefault(id(cell), types.CellType()) for cell in cells]
        copy = fn
        if self._values:
            copy = types.FunctionType(code, fn.__globals__, fn.__name__, None, tuple(become))
            copy.__qualname__ = fn.__qualname__
            copy.__dict__.update(fn.__dict__)
        self._functions[id(fn)] = copy
        self._note(code, path or fn.__name__)
        for name, cell, new in zip(code.co_freevars, cells, become, strict=True):
            self._cell(cell, new, _join(path, name))
        given = fn.__defaults__ or ()
        names = code.co_varnames[code.co_argcount - len(given) : code.co_argcount]
        defaults = [self.visit(x, _join(path, n)) for n, x in zip(names, given, strict=True)]
        keywords = {n: self.visit(x, _join(path, n)) for n, x in (fn.__kwdefaults__ or {}).items()}
        if copy is not fn:
            copy.__defaults__, copy.__kwdefaults__ = tuple(defaults) or None, keywords or None
        return copy

    def _cell(self, cell: types.CellType, new: types.CellType, path: str) -> None:
        if id(cell) in self._seen:  # two functions share it
            return
        self._seen.add(id(cell))
        try:
            content = cell.cell_contents
        except ValueError:  # not assigned yet
            self._note(_NOTHING, path)
            return
        new.cell_contents = self.visit(content, path)

    def _jitted_function(self, value: Any, path: str) -> Any:
        """JAX does not say how it was made, so that it cannot be made again."""
        if id(value) not in self._jitted:
            inside = _CapturedWalk({}, self._jitted | {id(value)})
            inside.visit(value.__wrapped__, path)
            self.found += [dataclasses.replace(c, is_replaceable=False) for c in inside.found]
        return value

    def _nest(self, value: Any, path: str) -> Any:
        try:
            leaves, structure = nest.flatten(value)
        except (TypeError, ValueError):  # a dict whose keys have no order
            return self._leaf(value, path)
        if value is None or (len(leaves) == 1 and leaves[0] is value):
            return self._leaf(value, path)
        at = len(self.found)
        self._note(structure, path)
        new = [self.visit(leaf, path + where) for where, leaf in nest.leaves_with_path(value)]
        num_inside = len(self.found) - at - 1
        self.found[at] = CapturedValue(path, structure, False, value, num_inside)
        if all(one is other for one, other in zip(new, leaves, strict=True)):
            return value
        return nest.unflatten(structure, new)

    def _leaf(self, value: Any, path: str) -> Any:
        self.found.append(CapturedValue(path or "the function", value, is_replaceable=bool(path)))
        return self._values.get(path, value)

    def _note(self, value: Any, path: str) -> None:
        self.found.append(CapturedValue(path, value, is_replaceable=False))

    def _made(self, value: Any, make: Callable[..., Any], *parts: Any) -> Any:
        return make(*parts) if self._values else value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
