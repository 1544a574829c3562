"""Keeps JAX from reusing, in an eager run, what it traced before a variable changed.

JAX caches traced functions; one that reads a variable holds the value it saw. In
an eager run each replica therefore traces under a token made of its id and of a
number that changes with the first write after such a read, and is brought up to
date after every write and every meeting. Programs without variables inside are
traced once, however many writes there are.

A thread cannot change the token of another one. A write by a thread that is no part
of the run makes JAX trace everything anew instead (`forget_traces`).
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import jax

from replicax.engine.trace.frame import current_frame, trace_token
from replicax.jax_internals.traces import set_everywhere

_writes = itertools.count(1)
_generations = itertools.count(1)

# Part of every JAX cache key, and the same for all threads.
_generation = jax.make_user_context(0)


class _Epoch:
    """The number that tokens are made of.

    Attributes:
        number: The number.
        read: Another object after each read whose value JAX holds. No bool, which a write could
            take back just after the next read.
        written: What `read` was at the last write.
        is_watched: Whether `advance` has anything to do: there was such a read, or an
            eager run, since the process began.
    """

    __slots__ = ("is_watched", "number", "read", "written")

    def __init__(self) -> None:
        self.number = 0
        self.read = self.written = object()
        self.is_watched = False


EPOCH = _Epoch()


class _Token(threading.local):
    replica_id: int | None = None
    manager: Any = None


_token = _Token()
_open_runs: set[object] = set()
_runs: contextvars.ContextVar[tuple[object, ...]] = contextvars.ContextVar(
    "replicax_eager_runs", default=()
)  # those that this code is part of; replicas have it from the thread that runs them


@contextlib.contextmanager
def eager_run() -> Iterator[None]:
    """What happens in here, and in replicas that are started here, is one eager run."""
    run = object()
    outer = _runs.set((*_runs.get(), run))
    _open_runs.add(run)
    try:
        yield
    finally:
        _open_runs.discard(run)
        _runs.reset(outer)


def note_traced_read() -> None:
    """Says that JAX is about to remember the value of some variable, under the current token."""
    EPOCH.read = object()
    EPOCH.is_watched = True


def advance() -> None:
    """Says that some variable has changed."""
    read = EPOCH.read
    if read is not EPOCH.written:
        EPOCH.written = read
        EPOCH.number = next(_writes)
        if _open_runs.difference(_runs.get()):
            forget_traces()
    if _token.manager is not None and current_frame() is None:  # a trace has a token of its own
        renew()


def forget_traces() -> None:
    """Keeps JAX from using again, on any thread, what it has traced so far, or traces now."""
    set_everywhere(_generation, next(_generations))


def renew() -> None:
    """Brings this thread's token up to date, if it has one."""
    if _token.manager is not None:
        _token.manager.__exit__(None, None, None)
        _enter(_token.replica_id)


def _enter(replica_id: int | None) -> None:
    _token.replica_id = replica_id
    _token.manager = trace_token(("eager", replica_id, EPOCH.number))
    _token.manager.__enter__()


@contextlib.contextmanager
def replica_token(replica_id: int) -> Iterator[None]:
    """Marks everything traced here as belonging to one replica of an eager run."""
    EPOCH.is_watched = True
    outer = _token.replica_id, _token.manager
    _enter(replica_id)
    try:
        yield
    finally:
        _token.manager.__exit__(None, None, None)
        _token.replica_id, _token.manager = outer
        renew()


def has_token() -> bool:
    """Whether this thread runs an eager replica."""
    return _token.manager is not None
