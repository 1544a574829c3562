"""Says once of a function that it is compiled again and again, and what makes it so."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

from replicax.core import notices, recording
from replicax.engine.functions import arguments
from replicax.engine.functions.closures import ById

RETRACES_BEFORE_WARNING = 5
_NUM_CHANGES = 8  # are kept of one function

_ADVICE = "Pass values that change as arrays, and keep their shapes."
_CAPTURED = "Pass it as an argument: an array, or a float."
_OBJECT = "A program is for one object: capture the same one each time."
_FIXED = (
    "It is no input of the program because Python needs its value (if, int(), an index), or "
    "because functions in a list or an attribute have captured it too. Compute with it in jnp and "
    "lax, and pass it to such functions."
)

Names = tuple[str, ...]


class Retraces:
    """Counts the programs of each function of a call site."""

    def __init__(self) -> None:
        self._counts: collections.Counter[Hashable] = collections.Counter()
        self._last: dict[Hashable, tuple[Any, Mapping[Names, Hashable]]] = {}
        self._changes: dict[Hashable, collections.deque[Any]] = {}

    def note(
        self,
        fn: Callable[..., Any],
        name: str,
        key: Any,
        constants: Mapping[Names, Hashable],
        fixed: Collection[Names],
    ) -> None:
        """Called before `fn` is compiled; warns if that happens often.

        Args:
            fn: The function.
            name: What to call it.
            key: Of the program: begins with the structure of the arguments and their keys.
            constants: The keys of the captured values that are part of the program.
            fixed: Those of them that would be inputs if that were possible.
        """
        code = _code_of(fn)
        count, last = self._counts[code], self._last.get(code)
        if last is not None and last[0] == key:  # an interrupted compilation, or a lost variable
            return
        self._counts[code] += 1
        self._last[code] = key, constants
        if recording.recorder is not None:
            recording.recorder.note_program(name, is_again=count > 0)
        if last is None:
            return
        kept = self._changes.setdefault(code, collections.deque(maxlen=_NUM_CHANGES))
        kept.append((last, (key, constants), fixed))
        if count >= RETRACES_BEFORE_WARNING:
            notices.notify_once(
                ("retraces", ById(self), code),
                f"{name!r} has been traced {count} times; last because "
                f"{_what_changed(last, (key, constants), fn, fixed)}",
            )

    def history(self, fn: Callable[..., Any]) -> tuple[int, tuple[str, ...]]:
        """How many programs `fn` has had, and why the last of them were needed, oldest first."""
        code = _code_of(fn)
        changes = self._changes.get(code, ())
        return self._counts[code], tuple(_what_changed(a, b, fn, fixed) for a, b, fixed in changes)


def _code_of(fn: Any) -> Hashable:
    """The same for functions that are defined by the same lines."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = getattr(fn, "__func__", fn)
    return fn.__code__ if isinstance(fn, types.FunctionType) else ById(fn)


def _what_changed(old: Any, new: Any, fn: Callable[..., Any], fixed: Collection[Names]) -> str:
    """What differs between two programs of `fn`, and what to do."""
    (old_key, old_constants), (new_key, constants) = old, new
    structure = new_key[0]
    if old_key[0] != structure:
        return f"the structure of its arguments changed from {old_key[0]} to {structure}. {_ADVICE}"
    pairs = zip(old_key[1], new_key[1], strict=False)
    num_arguments = structure if isinstance(structure, int) else structure.num_leaves
    for index, (before, after) in enumerate(pairs):
        if before != after and index < num_arguments:
            change = arguments.describe_change(before, after)
            name = arguments.name_of(index, structure, fn)
            return f"argument {name} changed: {change}. {_ADVICE}"
    for names, after in constants.items():
        before = old_constants.get(names, after)
        if before != after:
            change = arguments.describe_change(before, after)
            reason = f"the captured value {'.'.join(names)!r} changed: {change}."
            if names in fixed:
                return f"{reason} {_FIXED}"
            return f"{reason} {_OBJECT if isinstance(after, ById) else _CAPTURED}"
    return f"the strategy, its options, JAX's settings or a captured shape changed. {_ADVICE}"
