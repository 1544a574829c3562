"""Finds what a checkpoint saves in the objects it is given, and what to call it.

A key is the way to a thing: ``model/layers/0/w``. Optimizers and metrics are known by
their ``variables``, generators by theirs being attributes, iterators by ``get_state``
and ``set_state``: nothing here imports them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from replicax.checkpoint.encoding import Scalar
from replicax.checkpoint.entries import Entry, StateEntry, ValueEntry, VariableEntry
from replicax.checkpoint.errors import CheckpointObjectError
from replicax.core import nest
from replicax.engine.protocols import CompiledCallable, variable_of
from replicax.values.distributed import DistributedValues
from replicax.variables.variable import Variable

STATE_METHODS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))

# Where objects of other libraries begin, which hold no variables that a user put there.
_FOREIGN = frozenset(
    {"builtins", "functools", "threading", "logging", "pathlib", "concurrent", "asyncio", "queue"}
    | {"types", "typing", "jax", "jaxlib", "numpy", "ml_dtypes", "optax", "orbax", "chex", "grain"}
)


class Found:
    """What there is to save.

    Attributes:
        entries: Everything by key; a thing that several ways lead to has several keys.
        empty: Objects without anything to save, by key.
        skipped: The keys that arrays in attributes would have; these are not saved.
    """

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.empty: dict[str, type] = {}
        self.skipped: list[str] = []
        self._open: list[int] = []

    def add_all(self, objects: Mapping[str, Any], assign: Callable[[str, Any], None]) -> None:
        """Looks at what was given by name; `assign` replaces a Python value."""
        for name, value in objects.items():
            self._add(name, value, lambda new, name=name: assign(name, new))

    def add_root(self, root: Any, path: str) -> None:
        """Looks at an object whose parts have no name of their own in front."""
        self._add(path, root, None)

    def _add(self, path: str, thing: Any, assign: Callable[[Any], None] | None) -> None:
        """Adds what the user gave explicitly: it must be something that can be saved."""
        if isinstance(thing, Scalar):
            if assign is None:
                raise CheckpointObjectError(
                    f"a checkpoint got {thing!r} at {path!r}, in a tuple, where it could not be "
                    "replaced. Put it in a list or dict, or give it a name of its own."
                )
            self._put(path, ValueEntry(thing, assign))
        elif id(thing) in self._open:
            return
        elif isinstance(thing, dict):
            with_keys = [(_dict_key(path, key), key) for key in thing]
            self._inside(
                thing,
                lambda: [
                    self._add(_join(path, part), thing[key], _item_setter(thing, key))
                    for part, key in with_keys
                ],
            )
        elif isinstance(thing, (list, tuple)):
            self._inside(
                thing,
                lambda: [
                    self._add(
                        _join(path, part),
                        item,
                        _item_setter(thing, i) if isinstance(thing, list) else None,
                    )
                    for i, (part, item) in enumerate(_items(thing))
                ],
            )
        elif not self._add_known(path, thing):
            if not _is_walkable(thing):
                raise _cannot_save(path, thing)
            before = len(self.entries)
            self._add_attributes(path, thing)
            if len(self.entries) == before:
                self.empty[path] = type(thing)

    def _add_known(self, path: str, thing: Any) -> bool:
        """Adds a variable, or an object that says what it holds; False if it is neither."""
        variable = variable_of(thing)
        if isinstance(variable, Variable):
            self._put(path or variable.name, VariableEntry(variable))
            return True
        if isinstance(thing, (type, DistributedValues)):
            return False
        own_find = getattr(thing, "_find_in_checkpoint", None)
        if own_find is not None:  # a Checkpoint inside another
            self._inside(thing, lambda: own_find(self, path))
            return True
        for methods in STATE_METHODS:
            if all(callable(getattr(thing, method, None)) for method in methods):
                self._put(path, StateEntry(thing, methods))
                return True
        held = getattr(thing, "variables", None)
        if not isinstance(held, (list, tuple)):
            return False
        variables = [variable_of(variable) for variable in held]
        for variable in variables:
            if not isinstance(variable, Variable):
                raise CheckpointObjectError(
                    f"a checkpoint got {type(thing).__name__} at {path!r}, whose variables are of "
                    f"type {type(variable).__module__}.{type(variable).__name__}; expected "
                    "replicax.Variable. Give it an object with state_dict and load_state_dict."
                )
        if all(variable is other for variable, other in zip(variables, held, strict=True)):
            self._add_named(path, held, f"{getattr(thing, 'name', '')}/")
        else:  # of another library, which may give other names to the same model made again
            for index, variable in enumerate(variables):
                self._put(_join(path, str(index)), VariableEntry(variable))
        return True

    def _add_named(self, path: str, variables: Any, prefix: str) -> None:
        """Adds variables by name; of equal names the later ones get a number."""
        for variable in variables:
            name = key = _join(path, variable.name.removeprefix(prefix))
            number = 0
            while key in self.entries:
                number += 1
                key = f"{name}_{number}"
            self._put(key, VariableEntry(variable))

    def _add_attributes(self, path: str, thing: Any) -> None:
        goes_on = not type(thing).__module__.startswith("replicax.")
        before = len(self.entries)
        self._inside(
            thing,
            lambda: [
                self._add_if_known(_join(path, name), value, goes_on)
                for name, value in list(vars(thing).items())
            ],
        )
        if goes_on and len(self.entries) == before:
            self._add_leaves(path, thing)

    def _add_leaves(self, path: str, thing: Any) -> None:
        """Adds the variables of a pytree that does not have them in attributes: ``nnx.State``."""
        pairs = jax.tree_util.tree_leaves_with_path(thing, is_leaf=nest.is_leaf)
        for keys, leaf in pairs:
            if isinstance(leaf, Variable):
                name = jax.tree_util.keystr(keys, simple=True, separator="/")
                self._put(_join(path, name), VariableEntry(leaf))

    def _add_if_known(self, path: str, thing: Any, goes_on: bool) -> None:
        """Adds what an attribute leads to; attributes without state are none of ours."""
        if isinstance(thing, Variable):
            self._put(path, VariableEntry(thing))
        elif isinstance(thing, (jax.Array, np.ndarray)):
            if goes_on:
                self.skipped.append(path)
        elif not goes_on or id(thing) in self._open or isinstance(thing, Scalar):
            return
        elif isinstance(thing, dict):
            items = [(str(key), item) for key, item in thing.items() if type(key) in (str, int)]
            self._add_items(path, thing, items)
        elif isinstance(thing, (list, tuple)):
            self._add_items(path, thing, _items(thing))
        elif not _is_strategy(thing) and not self._add_known(path, thing) and _is_walkable(thing):
            self._add_attributes(path, thing)

    def _add_items(self, path: str, thing: Any, items: list[tuple[str, Any]]) -> None:
        self._inside(
            thing,
            lambda: [self._add_if_known(_join(path, part), item, True) for part, item in items],
        )

    def _inside(self, thing: Any, look: Callable[[], Any]) -> None:
        """Looks inside `thing`, where a way back to it is not followed."""
        self._open.append(id(thing))
        try:
            look()
        finally:
            self._open.pop()

    def _put(self, key: str, entry: Entry) -> None:
        if key in self.entries:
            raise CheckpointObjectError(
                f"two things in a checkpoint would have the key {key!r}. Rename one of them: a "
                "dict key or a name with '/' in it looks like a way through two objects."
            )
        self.entries[key] = entry


def _join(path: str, part: str) -> str:
    return f"{path}/{part}" if path else part


def _items(sequence: Any) -> list[tuple[str, Any]]:
    names = getattr(sequence, "_fields", range(len(sequence)))
    return [(str(name), item) for name, item in zip(names, sequence, strict=True)]


def _dict_key(path: str, key: Any) -> str:
    if type(key) not in (str, int):
        raise CheckpointObjectError(
            f"the dict at {path!r} of a checkpoint has the key {key!r} of type "
            f"{type(key).__name__}; expected strings or ints, which stay the same in the next run."
        )
    return str(key)


def _item_setter(container: Any, key: Any) -> Callable[[Any], None]:
    def assign(value: Any) -> None:
        container[key] = value

    return assign


def _is_strategy(thing: Any) -> bool:
    kind = type(thing)
    return hasattr(kind, "extended") and hasattr(kind, "num_replicas_in_sync")


def _is_walkable(thing: Any) -> bool:
    """Whether `thing` is an object with attributes of its own, made by a class of the user's."""
    root = type(thing).__module__.partition(".")[0]
    known = isinstance(thing, CompiledCallable) or root in _FOREIGN
    return not known and hasattr(thing, "__dict__") and not isinstance(thing, type)


def _cannot_save(path: str, thing: Any) -> CheckpointObjectError:
    if isinstance(thing, (jax.Array, np.ndarray, np.generic)):
        advice = "An array cannot be replaced where others hold it: make it a replicax.Variable."
    elif isinstance(thing, DistributedValues):
        advice = "Reduce it, or keep it in a replicax.Variable."
    else:
        advice = (
            "Give it variables, optimizers, metrics, generators, iterators of distributed "
            "datasets, objects with variables in their attributes, objects with state_dict and "
            "load_state_dict, numbers, strings, or dicts, lists and tuples of these."
        )
    return CheckpointObjectError(
        f"a checkpoint got {type(thing).__module__}.{type(thing).__qualname__} at {path!r}, which "
        f"it cannot save. {advice}"
    )
