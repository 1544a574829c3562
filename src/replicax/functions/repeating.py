"""Recognises that a call is the last one again, and launches the same program.

Most calls of a training loop differ from the one before in nothing but the values of
their arguments. They are recognised by comparing everything that is part of the call
site's key, mostly by identity, in one closure; see `launching` for the reason.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

from replicax.backend import compat
from replicax.backend.runahead import RUN_AHEAD
from replicax.context import stack
from replicax.core.protocols import DIFFERENT
from replicax.execution import frame
from replicax.functions import arguments
from replicax.functions.program import Program, SettingsChanged
from replicax.functions.settings import SETTINGS
from replicax.values.distributed import PerReplica
from replicax.variables.storage import COUNTS

Repeat = Callable[[Any, Sequence[Any]], Any]
"""From strategy and arguments to the result, or to `DIFFERENT`."""

_NO_PATH = "by position".__str__


def not_repeated(strategy: Any, args: Sequence[Any]) -> Any:
    """The `Repeat` of a call site whose last call must not be repeated."""
    return DIFFERENT


def repeat_of(fn: Any, keys: tuple[Any, ...], strategy: Any, program: Program) -> Repeat:
    """A function that repeats this call, for calls outside every scope with leaves by position.

    Args:
        fn: The function that was called; the call site has no other.
        keys: For each argument its `arguments.leaf_key`.
        strategy: The strategy whose replicas it ran on, or None.
        program: The program that it found, launched once.

    Returns:
        `not_repeated` if the call is of a kind that needs a second look every time.
    """
    if program.returns_arguments or not all(map(arguments.is_array_key, keys)):
        return not_repeated
    inner = getattr(fn, "__func__", fn)
    cells = _cells_of(inner) if getattr(inner, "__closure__", None) else []
    cells = tuple((cell, _content(cell)) for cell in cells)
    num_args = len(keys)
    launch, finish = program.launch, program.finish
    assert finish is not None  # it has been launched
    contexts, process = stack.watch()
    traces = frame.watch()
    array_type, counts, run_ahead, settings = compat.ConcreteArray, COUNTS, RUN_AHEAD, SETTINGS
    kind_of = compat.kind_of
    arrays_seen: list[Any] = [None] * num_args  # the kinds of arrays that enter as they are

    def repeat(on: Any, args: Sequence[Any]) -> Any:
        if (
            on is not strategy
            or len(args) != num_args
            or contexts.entries
            or process.chosen is not None
            or traces.frame is not None
            or settings.run_eagerly
        ):
            return DIFFERENT
        arrays = []
        for index, arg in enumerate(args):  # a strict zip costs more
            kind, key = type(arg), keys[index]
            if kind is PerReplica:
                array = arg.packed_if_like(key)
                if array is None:
                    return DIFFERENT
                arrays.append(array)
            elif kind is array_type and kind_of(arg) == arrays_seen[index]:
                arrays.append(arg)
            elif arguments.leaf_key(arg) == key:
                if kind is array_type and not arg.committed:
                    arrays_seen[index] = kind_of(arg)
                arrays.append(arguments.lower(arg, _NO_PATH))
            else:
                return DIFFERENT
        try:
            for cell, captured in cells:
                if cell.cell_contents is not captured:
                    return DIFFERENT
        except ValueError:  # a cell was emptied
            return DIFFERENT
        if counts.freed + run_ahead.num_failures != program.freed_seen and not program.is_alive():
            return DIFFERENT
        try:
            return finish(launch(arrays))
        except SettingsChanged:
            return DIFFERENT

    return repeat


def _cells_of(fn: Any) -> list[types.CellType]:
    """The cells of a function, and of the functions it has captured."""
    seen, cells, functions = {id(fn)}, [], [fn]
    for function in functions:  # grows meanwhile
        for cell in function.__closure__ or ():
            cells.append(cell)
            value = _content(cell)
            if type(value) is types.FunctionType and id(value) not in seen:
                seen.add(id(value))
                functions.append(value)
    return cells


def _content(cell: types.CellType) -> Any:
    """What a cell of a closure holds; None while it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None
