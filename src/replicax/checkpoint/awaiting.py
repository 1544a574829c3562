"""Gives a variable that is created after a restore its saved value before it is used.

Which saved value belongs to a variable is known when it has been put into an object of the
checkpoint. That is after its creation and before its first use. So every variable that is created
while values wait gets a `_FirstUse`, which its storage calls before it is used.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol

import jax

from replicax.backend.runahead import RUN_AHEAD
from replicax.engine.storage import Storage
from replicax.variables import registry
from replicax.variables.variable import Variable


class Waiting(Protocol):
    """Saved values that wait for their variables."""

    def give_to(self, storage: Storage) -> None:
        """Gives its value to the variable of `storage`, if it has been attached meanwhile."""
        ...


_lock = RUN_AHEAD.lock  # the one that a launch holds when it looks at the arrays
_waiting: dict[int, Callable[[], Waiting | None]] = {}


class _FirstUse:
    """Implements `engine.storage.Watch` for one new variable.

    Attributes:
        is_over: Whether the variable has been used or assigned.
    """

    __slots__ = ("_initial", "is_over")

    def __init__(self, initial: jax.Array | None) -> None:
        """For a variable with this initial value; None if a trace has yet to compute it."""
        self._initial = None if initial is None else weakref.ref(initial)
        self.is_over = False

    def before_use(self, storage: Storage) -> None:
        """Lets all who wait give the variable its value, once."""
        if self.is_over or not storage.has_value:
            return
        with _lock:
            self.is_over = True
            for waiting in [refer() for refer in list(_waiting.values())]:
                if waiting is not None:
                    waiting.give_to(storage)

    def note_set(self, array: jax.Array) -> None:
        """Notes the initial value, or that it was replaced."""
        if self._initial is None:
            self._initial = weakref.ref(array)
        else:
            self.is_over = True

    def is_initial(self, array: jax.Array | None) -> bool:
        """Whether `array` is the initial value of the variable."""
        return self._initial is not None and array is not None and self._initial() is array


def watch_for(waiting: Waiting, *, weakly: bool = False) -> None:
    """From now on, every new variable is watched on behalf of `waiting`.

    Args:
        waiting: Who has values to give.
        weakly: Whether that ends when nobody else holds `waiting`.
    """
    key = id(waiting)
    refer = weakref.ref(waiting, lambda _: _forget(key)) if weakly else lambda: waiting
    with _lock:
        _waiting[key] = refer
        registry.observe(_watch)


def end_watch_for(waiting: Waiting) -> None:
    """Ends what `watch_for` began."""
    _forget(id(waiting))


def _forget(key: int) -> None:
    with _lock:
        _waiting.pop(key, None)
        if not _waiting:
            registry.observe(None)


def _watch(variable: Variable) -> None:
    storage = variable._storage
    if storage.watch is None:  # each variant of a trace that creates it registers it
        storage.watch = _FirstUse(storage.array)


def is_unused(storage: Storage) -> bool:
    """Whether a variable has its initial value, which nobody has looked at."""
    watch = storage.watch
    return isinstance(watch, _FirstUse) and not watch.is_over and storage.has_value


def is_unassigned(storage: Storage) -> bool:
    """Whether a variable that was watched from its creation still has its initial value."""
    watch = storage.watch
    return isinstance(watch, _FirstUse) and watch.is_initial(storage.array)
