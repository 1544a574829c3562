"""Closes what is still being read when the interpreter goes down.

An iterator that a program keeps to its end would otherwise be taken apart after
the modules it needs, and after JAX has let go of the devices.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from typing import Protocol


class Closable(Protocol):
    """What can be closed, more than once."""

    def close(self) -> None:
        """Ends the reading."""
        ...


class _Open:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._is_registered = False

    def add(self, item: Closable) -> None:
        with self._lock:
            if not self._is_registered:
                # Not at import: what is registered later runs earlier, and JAX comes last.
                atexit.register(self.close_all)
                self._is_registered = True
            self._items.add(item)

    def close_all(self) -> None:
        for item in list(self._items):
            item.close()


_open = _Open()


def close_at_exit(item: Closable) -> None:
    """Lets `item` be closed at the latest when the interpreter exits; does not keep it alive."""
    _open.add(item)
