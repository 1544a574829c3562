"""Lets a variable that is created after a restore get its saved value before it is used.

Which saved value is a variable's own is known only when it has been put into an object
of the checkpoint, which is after its creation and before its first use. So the storage
of a new variable is watched, until something looks at its array.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

from replicax.backend.runahead import RUN_AHEAD
from replicax.variables import registry
from replicax.variables.storage import Storage, array_slot
from replicax.variables.variable import Variable


class Waiting(Protocol):
    """Saved values that wait for their variables."""

    def give_to(self, storage: Storage) -> None:
        """Gives its value to the variable of `storage`, if it has been attached meanwhile."""
        ...


_lock = RUN_AHEAD.lock  # the one that a launch holds when it looks at the arrays
_waiting: dict[int, Callable[[], Waiting | None]] = {}
_initial: weakref.WeakKeyDictionary[Storage, Any] = weakref.WeakKeyDictionary()


class WatchedStorage(Storage):
    """The storage of a variable that nobody has used; an ordinary one from the first use on."""

    __slots__ = ()

    @property
    def array(self) -> Any:
        """The buffers, after saved values have been given out."""
        if array_slot.__get__(self) is None:
            return None  # a trace computes the initial value, and nobody can have used it
        with _lock:
            _stop_watching(self)
            for waiting in [refer() for refer in list(_waiting.values())]:
                if waiting is not None:
                    waiting.give_to(self)
        return self.array

    @array.setter
    def array(self, array: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if array_slot.__get__(self) is None:
            _initial[self] = weakref.ref(array)
        else:
            _stop_watching(self)
        array_slot.__set__(self, array)


def _stop_watching(storage: Storage) -> None:
    storage.__class__ = Storage


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
    # Seen again when the variants of a trace create the same variable: each of them has looked
    # whether it has a value already, which is no use of it.
    if type(storage) is not Storage or (storage in _initial and not is_unassigned(storage)):
        return
    array = array_slot.__get__(storage)
    if array is not None:
        _initial[storage] = weakref.ref(array)
    storage.__class__ = WatchedStorage


def is_unused(storage: Storage) -> bool:
    """Whether a variable has its initial value, which nobody has looked at."""
    return type(storage) is WatchedStorage and array_slot.__get__(storage) is not None


def is_unassigned(storage: Storage) -> bool:
    """Whether a variable that was watched from its creation still has its initial value."""
    initial = _initial.get(storage)
    return initial is not None and initial() is array_slot.__get__(storage)
