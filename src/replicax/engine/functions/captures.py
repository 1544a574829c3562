"""Which captured values are inputs of a program and which are constants of it.

A value that stays what it was is a constant: Python may branch on it, and compute with a float in
64 bits. One that has changed since the function was compiled becomes an input, as an argument is,
so that the function is compiled once more and not for every new value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from replicax.backend import placement
from replicax.core.exact import EXACT_TYPES, exact
from replicax.engine.functions import closures
from replicax.engine.functions.closures import ById, Captured
from replicax.values.leaves import Leaf, leaf_kind

_MAX_FUNCTIONS = 256


def can_be_input(value: Any) -> bool:
    """Whether a captured value can enter a program as an argument does."""
    match leaf_kind(value):
        case Leaf.HOST_ARRAY:
            return placement.is_array_like(value)
        case Leaf.JAX_ARRAY | Leaf.MIRRORED:
            return True
    return type(value) in (float, complex)


def constant_key(value: Any) -> Hashable:
    """The key of a value that could be an input and is a constant."""
    return exact(value) if type(value) in EXACT_TYPES else ById(value)


@dataclasses.dataclass(slots=True)
class _History:
    """What became of the captured values of one function.

    Attributes:
        last: Their keys when it was last compiled.
        changed: Which of them are inputs since.
        needed: Which of them can be no inputs.
    """

    last: list[Hashable]
    changed: set[int] = dataclasses.field(default_factory=set)
    needed: set[int] = dataclasses.field(default_factory=set)


class Captures:
    """The captured values of the functions of a call site, by what else they have captured."""

    def __init__(self) -> None:
        self._histories: dict[Hashable, _History] = {}

    def inputs(self, captured: Captured) -> list[int]:
        """Which of ``captured.inputs`` are inputs."""
        history = self._histories.get(captured.key)
        return [] if history is None else sorted(history.changed)

    def note(self, captured: Captured, fn: Callable[..., Any]) -> bool:
        """Called before `fn` is compiled.

        Returns:
            Whether it has more inputs now than before.
        """
        keys = list(map(constant_key, captured.inputs))
        history = self._histories.get(captured.key)
        if history is None:
            for oldest in list(self._histories)[: 1 - _MAX_FUNCTIONS]:
                self._histories.pop(oldest, None)
            self._histories[captured.key] = _History(keys)
            return False
        pairs = enumerate(zip(history.last, keys, strict=True))
        new = {i for i, (old, key) in pairs if old != key} - history.changed - history.needed
        history.last = keys
        if new:
            shared = closures.shared_inputs(fn, can_be_input)
            history.needed |= new & shared
            history.changed |= new - shared
        return bool(new - history.needed)

    def refuse(self, captured: Captured, needed: Iterable[int]) -> None:
        """Makes constants of values that a trace has to know."""
        history = self._histories[captured.key]
        history.needed.update(needed)
        history.changed.difference_update(history.needed)
