"""The direct way to a compiled program, without what `jit` does to find it.

`jit` describes every argument, and looks up the program, in each call. A step that is
repeated finds the same one each time. So it is enough to see that its inputs are like those
of the last call: variables stay as they are until somebody else touches them, and arrays that
come from one place share their types and layouts, which are then compared by identity.
Whatever is different goes through `jit`. `launching` has the comparisons.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

from replicax.backend import compat


@dataclasses.dataclass(frozen=True, slots=True)
class Shortcut:
    """What must be as it was for a program to be called directly.

    Attributes:
        executable: The program.
        state_kinds: For each variable the `compat.kind_of` of its array.
        argument_kinds: The same for each argument.
        settings: The `compat.trace_settings`.
    """

    executable: compat.Executable
    state_kinds: list[Any]
    argument_kinds: list[Any]
    settings: Hashable


def find_shortcut(
    lowered: Any, before: Sequence[Any], state: list[Any], arguments: list[Any]
) -> Shortcut | None:
    """The direct way to a program that has just been launched through `jit`; None if it has none.

    Args:
        lowered: What the first launch through `jit` has compiled; it returns a list that begins
            with the next values of the variables that it replaces.
        before: What these variables were before the launch.
        state: All its variables after the launch, the replaced ones first.
        arguments: The other inputs.
    """
    state_kinds, argument_kinds = kinds_of(state), kinds_of(arguments)
    if state_kinds is None or argument_kinds is None:
        return None
    if not are_alike(kinds_of(before), state_kinds[: len(before)]):
        return None  # it changes what other programs take for granted
    executable = compat.executable_of(lowered.compile(), [*state, *arguments])
    if executable is None:
        return None
    return Shortcut(executable, state_kinds, argument_kinds, compat.trace_settings())


def kinds_of(arrays: Sequence[Any]) -> list[Any] | None:
    """The `compat.kind_of` each, or None if one is not an array on its devices."""
    try:
        return list(map(compat.kind_of, arrays))
    except AttributeError:  # random keys, a value of the host, or a variable that has gone
        return None


def are_alike(kinds: list[Any] | None, others: list[Any] | None) -> bool:
    """Whether an executable that can take arrays of some kinds can take the others.

    It does not see the abstract mesh that is part of the type of an array.
    """
    if kinds is None or others is None or len(kinds) != len(others):
        return False
    return kinds == others or all(
        (one.shape, one.dtype, one.weak_type, *layout)
        == (other.shape, other.dtype, other.weak_type, *other_layout)
        for (one, *layout), (other, *other_layout) in zip(kinds, others, strict=True)
    )
