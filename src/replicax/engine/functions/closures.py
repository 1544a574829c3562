"""What a function has captured; nothing else decides it.

A function has captured what is in its cells and its defaults, a bound method its object, a
`functools.partial` its arguments. Functions and tuples among these are looked into, and so is what
a wrapper such as ``jax.jit(fn)`` has wrapped. Everything else goes by value if it is a number or a
string, by identity if not. Globals and the attributes of objects are not captured.

`captured` takes a function apart. `with_inputs` gives a copy of it with other values in some of
the places, so that these can be inputs of a program.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import gc
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from replicax.core.exact import EXACT_TYPES, exact

IsInput = Callable[[Any], bool]
"""Whether a captured value is an input."""

EMPTY: Any = type("Empty", (), {"__repr__": lambda self: "EMPTY"})()
"""What a cell holds before its variable is assigned."""

_NOTHING: frozenset[int] = frozenset()
_NO_NAMES: frozenset[str] = frozenset()


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

    @property
    def is_weak(self) -> bool:
        """Whether the object can go."""
        return self._weak is not None

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


@dataclasses.dataclass(slots=True)
class Captured:
    """What a function has captured, without its inputs.

    The key is made of what `cells`, `functions` and `mappings` list and of nothing else. So it
    stays the same as long as all of them hold the same objects.

    Attributes:
        key: Equal for functions that do the same with the same inputs; keeps nothing alive.
        inputs: The captured values that are inputs.
        names: What each input is called where it was captured, innermost name last.
        cells: The cells that were looked into, each with what it held.
        functions: The functions, each with its code, defaults and defaults of keywords.
        mappings: The dictionaries, each with a copy.
    """

    key: Hashable
    inputs: list[Any]
    names: list[tuple[str, ...]]
    cells: list[tuple[types.CellType, Any]]
    functions: list[tuple[Any, Any, Any, Any]]
    mappings: list[tuple[Mapping[str, Any], dict[str, Any]]]


def captured(fn: Any, is_input: IsInput | None = None) -> Captured:
    """What `fn`, a function or any other callable, has captured.

    Args:
        fn: The function.
        is_input: Which of the captured values are inputs; none if None. What is in a cell that
            one of the functions assigns is never an input.
    """
    walk = _walk(fn, is_input)
    found = walk.cells, walk.functions, walk.mappings
    return Captured(walk.top_key, walk.inputs, walk.names, *found)


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


def with_inputs(fn: Any, is_input: IsInput, values: Sequence[Any]) -> Any:
    """A copy of `fn` with `values` where ``captured(fn, is_input).inputs`` are.

    Cells without inputs inside are shared with `fn`, so that it can assign them.
    """
    return _Copy(_walk(fn, is_input), values).of(fn) if values else fn


def shared_inputs(fn: Any, is_input: IsInput) -> set[int]:
    """Which of ``captured(fn, is_input).inputs`` a copy of `fn` may not see in all places.

    Those are in cells that belong to other functions as well, which `fn` may come by in ways that
    nobody can follow: from a list, an attribute, a global. Looks at every object in the process.
    """
    walk = _walk(fn, is_input)
    cells = tuple([cell for cell, _ in walk.cells if id(cell) in walk.holders])
    copied = {id(function.__closure__) for function, *_ in walk.functions}
    copied.add(id(cells))  # which Python 3.13 finds among the referrers
    shared = {
        id(cell)
        for closure in gc.get_referrers(*cells)
        if type(closure) is tuple and id(closure) not in copied
        if all(type(cell) is types.CellType for cell in closure)
        for cell in closure
    }
    shared &= walk.holders
    found = {i for i, (holder, _) in enumerate(walk.places) if holder in shared}
    is_direct = len(found) == len(shared)
    return found if is_direct else set(range(len(walk.inputs)))  # a function with inputs is shared


def constants(fn: Any, is_input: IsInput | None = None) -> dict[tuple[str, ...], Hashable]:
    """The keys of all captured values that are no inputs, by their names; for messages."""
    walk = _walk(fn, is_input, notes_constants=True)
    assert walk.constants is not None
    return walk.constants


def _walk(fn: Any, is_input: IsInput | None, *, notes_constants: bool = False) -> _Walk:
    walk = _Walk(fn, is_input, notes_constants=notes_constants)
    if not walk.assigned.isdisjoint(walk.holders):
        fixed = frozenset(walk.assigned)
        walk = _Walk(fn, is_input, fixed=fixed, notes_constants=notes_constants)
    return walk


class _Walk:
    """Goes through what a function has captured, always in the same order.

    Attributes:
        places: Where each of `inputs` is: the ``id`` of what holds it, and its index there.
        holders: The ``id`` of every cell, function, method, partial and tuple with an input inside.
        assigned: The ``id`` of every cell that a function assigns.
    """

    def __init__(
        self,
        fn: Any,
        is_input: IsInput | None,
        *,
        fixed: frozenset[int] = _NOTHING,
        wrappers: frozenset[int] = _NOTHING,
        notes_constants: bool = False,
    ) -> None:
        self.inputs: list[Any] = []
        self.names: list[tuple[str, ...]] = []
        self.places: list[tuple[int, int]] = []
        self.holders: set[int] = set()
        self.assigned: set[int] = set()
        self.cells: list[tuple[types.CellType, Any]] = []
        self.functions: list[tuple[Any, Any, Any, Any]] = []
        self.mappings: list[tuple[Mapping[str, Any], dict[str, Any]]] = []
        self.constants: dict[tuple[str, ...], Hashable] | None = {} if notes_constants else None
        self._is_input = is_input
        self._fixed = fixed  # cells that hold no inputs
        self._wrappers = wrappers  # those that this walk is inside of
        self._numbers: dict[int, int] = {}
        self._num_references = 0
        self.top_key = self._key(fn, ())

    def _key(self, value: Any, path: tuple[str, ...]) -> Hashable:
        kind = type(value)
        if kind in EXACT_TYPES:
            key: Hashable = exact(value)
        elif kind is types.FunctionType:
            return self._once(value, self._function_key, path)
        elif kind is types.MethodType:
            of_function = self._part(value, 0, value.__func__, path)
            return "method", of_function, ById(value.__self__)
        elif isinstance(value, functools.partial):
            return self._once(value, self._partial_key, path)
        elif isinstance(value, tuple) and not hasattr(value, "__dict__"):
            parts = enumerate(value)
            return kind, tuple([self._part(value, i, x, path) for i, x in parts])
        elif (wrapped := wrapped_by(value)) is not None:
            return "wrapper", ById(value), self._wrapped_key(value, wrapped)
        else:
            key = ById(value)
        if self.constants is not None:
            self.constants[path] = key
        return key

    def _once(self, value: Any, make: Callable[..., Hashable], *args: Any) -> Hashable:
        """``make(value, *args)``, or the number of a value that was met before."""
        number = self._numbers.get(id(value))
        if number is not None:
            self._num_references += 1  # the holder may hold inputs, by way of that value
            return "again", number
        self._numbers[id(value)] = len(self._numbers)
        return make(value, *args)

    def _part(self, holder: Any, index: int, value: Any, path: tuple[str, ...]) -> Hashable:
        """The key of one of the things that `holder` holds."""
        if self._is_input is None:
            return self._key(value, path)
        if self._is_input(value):
            self.inputs.append(value)
            self.names.append(path)
            self.places.append((id(holder), index))
            self.holders.add(id(holder))
            return "input"
        before = len(self.inputs) + self._num_references
        key = self._key(value, path)
        if len(self.inputs) + self._num_references != before:
            self.holders.add(id(holder))
        return key

    def _function_key(self, fn: Any, path: tuple[str, ...]) -> Hashable:
        code, defaults, keywords = fn.__code__, fn.__defaults__, fn.__kwdefaults__
        self.functions.append((fn, code, defaults, keywords))
        keys: list[Hashable] = []
        if fn.__closure__:
            self._add_cell_keys(keys, fn, code, path)
        if defaults:
            names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
            for name, value in zip(names, defaults, strict=True):
                keys.append(self._part(fn, len(keys), value, (*path, name)))
        of_keywords = self._mapping_keys(fn, len(keys), keywords, path) if keywords else ()
        return code, id(fn.__globals__), tuple(keys), of_keywords

    def _add_cell_keys(
        self, keys: list[Hashable], fn: Any, code: Any, path: tuple[str, ...]
    ) -> None:
        is_input = self._is_input
        assigned = _NO_NAMES if is_input is None else _assigned_in(code)
        before = len(self.inputs) + self._num_references
        for name, cell in zip(code.co_freevars, fn.__closure__, strict=True):
            if name in assigned:
                self.assigned.add(id(cell))
            if id(cell) in self._fixed:
                self._is_input = None
            keys.append(self._once(cell, self._cell_key, (*path, name)))
            self._is_input = is_input
        if len(self.inputs) + self._num_references != before:
            self.holders.add(id(fn))

    def _cell_key(self, cell: types.CellType, path: tuple[str, ...]) -> Hashable:
        content = contents_of(cell)
        self.cells.append((cell, content))
        return self._part(cell, 0, content, path)

    def _partial_key(self, value: Any, path: tuple[str, ...]) -> Hashable:
        parts = enumerate((value.func, *value.args))
        keys = tuple([self._part(value, i, part, path) for i, part in parts])
        keywords = self._mapping_keys(value, len(keys), value.keywords, path)
        return type(value), keys, keywords

    def _mapping_keys(
        self,
        holder: Any,
        first: int,
        mapping: Mapping[str, Any],
        path: tuple[str, ...],
    ) -> Hashable:
        self.mappings.append((mapping, dict(mapping)))
        items = enumerate(sorted(mapping.items(), key=_name), first)
        return tuple([(name, self._part(holder, i, v, (*path, name))) for i, (name, v) in items])

    def _wrapped_key(self, wrapper: Any, wrapped: Any) -> Hashable:
        """Of what is in a wrapper, which cannot be copied: there are no inputs inside.

        So also what is captured outside of it as well has its value in this key.
        """
        if id(wrapper) in self._wrappers:
            return None
        inside = _Walk(wrapped, None, wrappers=self._wrappers | {id(wrapper)})
        self.cells += inside.cells
        self.functions += inside.functions
        self.mappings += inside.mappings
        return inside.top_key


class _Copy:
    """Copies functions with other inputs in them."""

    def __init__(self, walk: _Walk, values: Sequence[Any]) -> None:
        self._holders = walk.holders
        self._replaced = dict(zip(walk.places, values, strict=True))
        self._made: dict[int, Any] = {}
        self._cells: dict[int, types.CellType] = {}

    def of(self, value: Any) -> Any:
        if id(value) not in self._holders:
            return value
        if id(value) not in self._made:
            if isinstance(value, types.FunctionType):
                return self._function(value)
            self._made[id(value)] = self._other(value)
        return self._made[id(value)]

    def _parts(self, holder: Any, parts: Iterable[Any], first: int = 0) -> list[Any]:
        places = enumerate(parts, first)
        return [
            self._replaced[place] if (place := (id(holder), i)) in self._replaced else self.of(part)
            for i, part in places
        ]

    def _mapping(self, holder: Any, mapping: Mapping[str, Any], first: int) -> dict[str, Any]:
        items = sorted(mapping.items(), key=_name)
        values = self._parts(holder, [value for _, value in items], first)
        return {name: value for (name, _), value in zip(items, values, strict=True)}

    def _function(self, fn: Any) -> Any:
        cells = fn.__closure__ or ()
        closure = tuple(map(self._cell, cells))
        copy = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, None, closure)
        self._made[id(fn)] = copy  # before its cells are filled, with what may refer to it
        for cell, own in zip(cells, closure, strict=True):
            if contents_of(own) is EMPTY and own is not cell:
                (own.cell_contents,) = self._parts(cell, [cell.cell_contents])
        for name in functools.WRAPPER_ASSIGNMENTS:
            setattr(copy, name, getattr(fn, name))
        copy.__dict__.update(fn.__dict__)
        defaults = fn.__defaults__ or ()
        copy.__defaults__ = tuple(self._parts(fn, defaults, len(cells))) or None
        keywords = fn.__kwdefaults__ or {}
        copy.__kwdefaults__ = self._mapping(fn, keywords, len(cells) + len(defaults)) or None
        return copy

    def _cell(self, cell: types.CellType) -> types.CellType:
        if id(cell) not in self._holders:
            return cell
        return self._cells.setdefault(id(cell), types.CellType())

    def _other(self, value: Any) -> Any:
        if isinstance(value, types.MethodType):
            return types.MethodType(self.of(value.__func__), value.__self__)
        if isinstance(value, functools.partial):
            fn, *args = self._parts(value, (value.func, *value.args))
            return type(value)(fn, *args, **self._mapping(value, value.keywords, len(args) + 1))
        parts = self._parts(value, value)
        return value._make(parts) if hasattr(value, "_make") else tuple(parts)


def contents_of(cell: types.CellType) -> Any:
    """What a cell of a closure holds, or `EMPTY`."""
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY


def _name(item: tuple[str, Any]) -> str:
    return item[0]


def wrapped_by(value: Any) -> Any:
    """The function that a callable object such as ``jax.jit(fn)`` has wrapped, if it tells."""
    if not callable(value) or isinstance(value, type):
        return None
    attributes = getattr(value, "__dict__", None)
    return attributes.get("__wrapped__") if type(attributes) is dict else None


@functools.lru_cache(maxsize=1024)
def _assigned_in(code: types.CodeType) -> frozenset[str]:
    """The names of captured variables that a function, or one defined inside it, assigns."""
    names = {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("STORE_DEREF", "DELETE_DEREF")
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _assigned_in(constant)
    return frozenset(names).intersection(code.co_freevars)
