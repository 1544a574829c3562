"""Recognises state that another library changes in place, which a step would lose or change twice.

A Flax NNX module, a Keras variable or a torch module is changed in place. A compiled step would
change a copy, or leave a tracer in it; an eager run would change it once for each replica. So they
are refused among the arguments of a step and in what it reaches: captured values, globals of its
module, and attributes that it names, of objects that it has.

`STATES` says what is refused. An integration, which makes a library work, calls `accept`.
Nothing is imported: classes are recognised by their names. Called once for each program that is
compiled, and once for each eager run.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import itertools
import types
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from replicax.core import nest
from replicax.core.errors import ForeignStateError
from replicax.engine.functions.closures import EMPTY, contents_of, wrapped_by
from replicax.engine.protocols import CompiledCallable

_MOST_ITEMS = 256  # of a container that are looked at
_MOST_LEVELS = 3  # of containers and attributes inside each other


@dataclasses.dataclass(frozen=True)
class ForeignState:
    """A kind of state that another library changes in place.

    Attributes:
        package: The package or module that defines the classes.
        classes: Their names; a subclass counts, wherever it is defined.
        library: What to call the library.
        way: What to write instead.
    """

    package: str
    classes: frozenset[str]
    library: str
    way: str


_NNX_WAY = (
    "Create it in `with strategy.scope():`, or give it to the strategy once, before the step: "
    "replicax.integrations.flax.distribute(model, strategy)"
)
_KERAS_WAY = (
    "Create it inside `with strategy.scope():`, or take a model over with "
    "replicax.integrations.keras.distribute(model, strategy). Or use its pure methods, such as "
    "model.stateless_call, with variables of your own"
)
_TORCH_WAY = (
    "A step runs JAX: write the model with JAX, give its arrays to replicax.variables_from, and "
    "update them with a replicax.Optimizer. Datasets of torch can stay as they are"
)

STATES = (
    ForeignState("flax.nnx", frozenset({"Pytree", "Object", "Variable"}), "Flax NNX", _NNX_WAY),
    ForeignState(
        "keras",
        frozenset({"Variable", "Layer", "BaseOptimizer", "Metric", "SeedGenerator"}),
        "Keras",
        _KERAS_WAY,
    ),
    ForeignState("torch", frozenset({"Module", "Optimizer"}), "PyTorch", _TORCH_WAY),
)
_PURE = (("flax.nnx", "State"),)  # a pytree of `Variable`, which is passed around and not changed
_PURE_METHODS = "stateless_"  # what the names of such methods of Keras begin with

_PLAIN = (
    jax.Array,
    np.ndarray,
    np.generic,
    nest.NestLeaf,
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    str,
    bytes,
    int,
    float,
    complex,
    type(None),
)


_accepted: dict[str, Callable[[Any], bool]] = {}


def accept(package: str, is_accepted: Callable[[Any], bool]) -> None:
    """Says that objects of a package may be in a step, because an integration looks after them.

    Args:
        package: The package in the table.
        is_accepted: Whether an object is looked after. The others are refused as before.
    """
    _accepted[package] = is_accepted


def refuse_foreign_state(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises if a step would change state of a library that has no integration.

    Args:
        fn: The function of the step.
        args: Its arguments.
        kwargs: The same by keyword.

    Raises:
        ForeignStateError: If there is such state.
    """
    search = _Search()
    search.arguments(args, kwargs)
    search.value(fn, "", ())


@functools.lru_cache(maxsize=4096)
def _state_of(kind: type) -> ForeignState | None:
    """What `kind` is, if instances hold state that is changed in place."""
    bases = [(base.__module__, base.__name__) for base in kind.__mro__]
    for state in STATES:
        for module, name in bases:
            if name in state.classes and f"{module}.".startswith(f"{state.package}."):
                return state
    return None


@functools.lru_cache(maxsize=4096)
def _is_plain(kind: type) -> bool:
    """Whether instances hold nothing that has to be looked at."""
    if issubclass(kind, _PLAIN):
        return True
    return any(
        name == base.__name__ and f"{base.__module__}.".startswith(f"{package}.")
        for base in kind.__mro__
        for package, name in _PURE
    )


@functools.lru_cache(maxsize=4096)
def _names_in(code: types.CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The globals and the attributes that a function reads, or one defined inside it."""
    read: tuple[dict[str, None], dict[str, None]] = {}, {}
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            read[0][instruction.argval] = None
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            read[1][instruction.argval] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for names, inside in zip(read, _names_in(constant), strict=True):
                names.update(dict.fromkeys(inside))
    return tuple(read[0]), tuple(read[1])


class _Search:
    """Looks for such state in what a step is given and in what it reaches."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()
        self._globals: Any = None  # those of the module in which the step is written

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def is_leaf(node: Any) -> bool:
            kind = type(node)
            return _is_plain(kind) or self._refused(node) is not None

        leaves = jax.tree_util.tree_leaves((args, kwargs), is_leaf=is_leaf)
        for index, leaf in enumerate(leaves):
            state = self._refused(leaf)
            if state is not None:
                pairs = jax.tree_util.tree_leaves_with_path((args, kwargs), is_leaf=is_leaf)
                path = jax.tree_util.keystr(pairs[index][0])
                raise _error(f"the argument at {path}", leaf, state)

    def value(self, value: Any, path: str, names: Iterable[str], level: int = 0) -> None:
        """Looks at a value that a function has, and reads the attributes `names` of."""
        kind = type(value)
        if _is_plain(kind) or value is EMPTY:
            return
        state = self._refused(value)
        if state is None and _state_of(kind) is not None:
            return
        if state is not None:
            raise _error(f"the captured value {path!r}" if path else "the function", value, state)
        if kind is types.FunctionType:
            self._function(value, path)
        elif kind is types.MethodType:
            self._method(value, path)
        elif isinstance(value, functools.partial):
            self.value((value.func, *value.args, *value.keywords.values()), path, names, level)
        elif isinstance(value, CompiledCallable):
            self.value(value.python_function, path, names, level)
        elif (wrapped := wrapped_by(value)) is not None:
            self.value(wrapped, path, names, level)
        elif level < _MOST_LEVELS and self._is_new(value):
            if isinstance(value, (list, tuple, set, frozenset, dict)):
                items = value.values() if isinstance(value, dict) else value
                for item in itertools.islice(items, _MOST_ITEMS):
                    self.value(item, path, names, level + 1)
            else:
                self._attributes(value, path, ("__call__", *names), level)

    def _function(self, fn: types.FunctionType, path: str, owner: Any = None) -> None:
        """Looks at what `fn` has captured and names, also of the object it is a method of."""
        if not self._is_new(fn, owner):
            return
        if self._globals is None:
            self._globals = fn.__globals__
        names, attributes = _names_in(fn.__code__)
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            self.value(contents_of(cell), _joined(path, name), attributes)
        for value in (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()):
            self.value(value, _joined(path, "default"), attributes)
        if fn.__globals__ is self._globals:
            for name in names:
                value = fn.__globals__.get(name)
                if isinstance(value, types.FunctionType) and value.__globals__ is not self._globals:
                    continue  # written elsewhere
                self.value(value, name, attributes)
        if owner is not None:
            self._attributes(owner, path or "self", attributes, 0)

    def _method(self, method: types.MethodType, path: str) -> None:
        owner = method.__self__
        state = self._refused(owner)
        if state is not None:
            if getattr(method, "__name__", "").startswith(_PURE_METHODS):
                return
            raise _error(f"the object of the method {path or method.__name__!r}", owner, state)
        if isinstance(method.__func__, types.FunctionType):
            self._function(method.__func__, path, owner)

    def _attributes(self, value: Any, path: str, names: Iterable[str], level: int) -> None:
        """Looks at attributes of the object and at methods of its class; calls nothing."""
        kind = type(value)
        own = getattr(value, "__dict__", None)
        if type(own) is not dict or kind.__module__.startswith("replicax."):
            return
        for name in names:
            if name in own:
                self.value(own[name], _joined(path, name), names, level + 1)
                continue
            for base in kind.__mro__:
                if name in vars(base):
                    method = vars(base)[name]
                    if type(method) is types.FunctionType:
                        self._function(method, path, value)
                    break

    def _refused(self, value: Any) -> ForeignState | None:
        state = _state_of(type(value))
        if state is None:
            return None
        is_accepted = _accepted.get(state.package)
        return None if is_accepted is not None and is_accepted(value) else state

    def _is_new(self, value: Any, owner: Any = None) -> bool:
        key = id(value), id(owner)
        if key in self._seen:
            return False
        self._seen.add(key)
        return True


def _error(where: str, value: Any, state: ForeignState) -> ForeignStateError:
    return ForeignStateError(
        f"{where} is a {state.library} object of type {type(value).__name__}, which is changed in "
        "place. A step would lose the changes, or make them once for each replica. "
        f"{state.way}."
    )


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
