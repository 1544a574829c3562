"""Keeps JAX from reusing, in an eager run, what it traced before a variable changed.

JAX caches traced functions; one that reads a variable holds the value it saw. In
an eager run each replica therefore traces under a token made of its id and of a
number that changes with the first write after such a read, and is brought up to
date after every write and every meeting. Programs without variables inside are
traced once, however many writes there are.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any

from replicax.execution.frame import current_frame, trace_token

_writes = itertools.count(1)


class _Epoch:
    """The number that tokens are made of.

    Attributes:
        number: The number.
        was_read_in_trace: Whether JAX holds the value of a variable since it last changed.
        is_watched: Whether `advance` has anything to do: there was such a read, or an
            eager run, since the process began.
    """

    __slots__ = ("is_watched", "number", "was_read_in_trace")

    def __init__(self) -> None:
        self.number = 0
        self.was_read_in_trace = False
        self.is_watched = False


EPOCH = _Epoch()


class _Token(threading.local):
    replica_id: int | None = None
    manager: Any = None


_token = _Token()


def note_traced_read() -> None:
    """Says that JAX is about to remember the value of some variable, under the current token."""
    EPOCH.was_read_in_trace = EPOCH.is_watched = True


def advance() -> None:
    """Says that some variable has changed."""
    if EPOCH.was_read_in_trace:
        EPOCH.was_read_in_trace = False
        EPOCH.number = next(_writes)
    if _token.manager is not None and current_frame() is None:  # a trace has a token of its own
        renew()


def renew() -> None:
    """Brings this thread's token up to date, if it has one."""
    if _token.manager is not None:
        _token.manager.__exit__(None, None, None)
        _token.manager = trace_token(("eager", _token.replica_id, EPOCH.number))
        _token.manager.__enter__()


@contextlib.contextmanager
def replica_token(replica_id: int) -> Iterator[None]:
    """Marks everything traced here as belonging to one replica of an eager run."""
    EPOCH.is_watched = True
    outer = _token.replica_id, _token.manager
    _token.replica_id = replica_id
    _token.manager = trace_token(("eager", replica_id, EPOCH.number))
    _token.manager.__enter__()
    try:
        yield
    finally:
        _token.manager.__exit__(None, None, None)
        _token.replica_id, _token.manager = outer


def has_token() -> bool:
    """Whether this thread runs an eager replica."""
    return _token.manager is not None
