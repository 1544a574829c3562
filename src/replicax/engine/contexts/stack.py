"""The per-thread stack of contexts, and the questions one may ask it.

Knows strategies only as `StrategyLike`. A new thread starts outside every scope, where `top` is
None. What stands in there, the default strategy, `strategies.current` knows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import threading
from collections.abc import Iterator
from typing import Any

import jax

from replicax.core.errors import ContextError
from replicax.engine.protocols import StrategyLike
from replicax.engine.trace import epoch
from replicax.engine.trace.frame import current_frame
from replicax.jax_internals.traces import is_staging, set_everywhere


class Mode(enum.Enum):
    """What the code on top of the stack is part of."""

    SCOPE = "strategy.scope()"
    REPLICA = "strategy.run()"
    MERGE = "the merge_fn of merge_call"
    UPDATE = "the function passed to extended.update()"

    __hash__ = object.__hash__  # the one of Enum is Python code, and this is part of every call


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One level of the stack."""

    strategy: StrategyLike
    mode: Mode
    replica_context: Any = None
    copy_id: int | None = None
    update: Any = None

    @property
    def is_default(self) -> bool:
        """Whether the strategy is the one that is in force where none was entered."""
        return self.strategy.extended._is_default


class _Stack(threading.local):
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.places: list[Any] = []  # for each entry what it has entered of `_place`


class _Process:
    """What is global: the strategy set with experimental_set_strategy."""

    chosen: StrategyLike | None = None
    is_place_kept: bool = False  # outside every entry


_stack = _Stack()

# Part of every JAX cache key: a traced function that has asked for the strategy or the replica
# holds the answer, and must not be reused where it is another one. None as long as no trace has
# asked: everything would be traced, and compiled, for each strategy anew.
_place = jax.make_user_context(None)
_kept_of: set[int] = set()  # the serials of the strategies that traces have asked for


def watch() -> tuple[Any, Any]:
    """For code that asks where it is in every step and cannot afford to call `top`.

    Returns:
        An object whose ``entries`` are this thread's, and one whose ``chosen`` is the strategy
        set for the whole process. Outside is where there are none.
    """
    return _stack, _Process


def top() -> Entry | None:
    """The innermost entry of this thread, or the global one, or None."""
    entries = _stack.entries
    if entries:
        return entries[-1]
    if _Process.chosen is not None:
        return Entry(_Process.chosen, Mode.SCOPE)
    return None


@contextlib.contextmanager
def entered(entry: Entry) -> Iterator[None]:
    """Puts `entry` on top of this thread's stack."""
    depths = len(_stack.entries), len(_stack.places)
    try:  # around `push`, too: Ctrl-C may come when it returns
        push(entry)
        yield
    finally:
        _leave(*depths)


def push(entry: Entry) -> None:
    """Puts `entry` on top of this thread's stack until `pop`."""
    is_kept = entry.strategy.extended._serial in _kept_of or current_frame() is not None
    place = _place(_place_of(entry) if is_kept else None)
    place.__enter__()
    _stack.places.append(place)
    _stack.entries.append(entry)


def _leave(num_entries: int, num_places: int) -> None:
    """Leaves so many entries and places of this thread."""
    del _stack.entries[num_entries:]
    while len(_stack.places) > num_places:
        _stack.places.pop().__exit__(None, None, None)


def _place_of(entry: Entry | None) -> tuple[Any, ...]:
    return ("outside",) if entry is None else (entry.mode, entry.strategy.extended._serial)


def keep_place() -> None:
    """To be called where code asks where it is: in a trace, JAX will hold the answer.

    In the traces that Replicax starts it holds it for that trace only.
    """
    if _place.value is not None or current_frame() is not None or not is_staging():
        return
    entry = top()
    if entry is not None and _stack.places:
        _kept_of.add(entry.strategy.extended._serial)
        _stack.places.pop().__exit__(None, None, None)
        place = _place(_place_of(entry))
        place.__enter__()
        _stack.places.append(place)
    else:
        _Process.is_place_kept = True
        set_everywhere(_place, _place_of(entry))
    epoch.forget_traces()  # this one was looked up without a place


def pop(strategy: StrategyLike) -> None:
    """Takes the top entry off again.

    Raises:
        ContextError: If scopes were left in another order than entered.
    """
    entries = _stack.entries
    if not entries or entries[-1].strategy is not strategy or entries[-1].mode is not Mode.SCOPE:
        raise ContextError(
            f"the scope of {strategy!r} was left while {describe()} was the innermost. Leave "
            "scopes in the opposite order of entering, on the same thread: use `with`."
        )
    _leave(len(entries) - 1, len(_stack.places) - 1)


@contextlib.contextmanager
def replaced_by(entry: Entry) -> Iterator[None]:
    """Makes `entry` the whole stack, for a thread that works on another thread's behalf."""
    outer, _stack.entries = _stack.entries, []
    try:
        with entered(entry):
            yield
    finally:
        _stack.entries = outer


def has_strategy() -> bool:
    """Whether a strategy other than the default one is in force.

    Returns:
        True inside the scope or the run of such a strategy.

    Example:
        >>> import replicax as rx
        >>> rx.has_strategy()
        False
    """
    keep_place()
    entry = top()
    return entry is not None and not entry.is_default


def in_cross_replica_context() -> bool:
    """Whether code here speaks for all replicas at once.

    Returns:
        True in a scope, and in the functions of ``merge_call`` and ``extended.update``.

    Example:
        >>> import replicax as rx
        >>> rx.in_cross_replica_context()
        False
        >>> with rx.MirroredStrategy(["CPU:0"]).scope():
        ...     rx.in_cross_replica_context()
        True
    """
    keep_place()
    entry = top()
    return entry is not None and entry.mode is not Mode.REPLICA


def choose(strategy: StrategyLike | None) -> None:
    """Makes `strategy` the one in force outside of every scope, on all threads."""
    _Process.chosen = strategy
    if _Process.is_place_kept:
        set_everywhere(_place, _place_of(top()))


def has_entered() -> bool:
    """Whether this thread is inside a scope or a run."""
    return bool(_stack.entries)


def describe() -> str:
    """Where this code runs, for an error message."""
    entry = top()
    if entry is None:
        return "no strategy's scope"
    return f"{entry.mode.value} of {entry.strategy!r}"


def require_outside_run(strategy: StrategyLike, call: str) -> None:
    """Raises unless `call` of `strategy` may be made here.

    Raises:
        ContextError: In the strategy's own replica context, or under another strategy.
    """
    entry = top()
    if entry is None or entry.is_default:
        return
    if entry.strategy is not strategy:
        raise ContextError(
            f"{call} of {strategy!r} was called inside {describe()}. One strategy is in force at a "
            "time: leave the other scope first, or use the strategy that is in force "
            "(replicax.get_strategy())."
        )
    if entry.mode is Mode.REPLICA:
        then = "call the function itself to run it here"
        if call != "Strategy.run":  # which merge_fn may not call either
            then = f"call {call} in merge_fn"
        raise ContextError(
            f"{call} was called inside {describe()}, in replica context. To act across replicas "
            "from there, call replicax.get_replica_context().merge_call(merge_fn, args=...), and "
            f"{then}."
        )
