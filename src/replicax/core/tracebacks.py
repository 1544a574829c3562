"""Shows the user's part of an error: their frames, their function, their argument.

JAX takes its own frames out of tracebacks, as ``jax_traceback_filtering`` says. The functions of
this module do the same with the frames of this package, and with what JAX says of a function that
this package has traced. The verbs that call a user's function use them.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sysconfig
import types
from collections.abc import Callable
from typing import Any

import jax

from replicax.core import nest
from replicax.core.notices import JAX_DIR, PACKAGE_DIR

VALUE_NEEDED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""What JAX raises where Python needs the value of a tracer."""

_OWN = (PACKAGE_DIR + os.sep, JAX_DIR + os.sep, "<frozen ", "<string>")
_STDLIB = sysconfig.get_path("stdlib") + os.sep
_TRACED_HERE = re.compile(r"the function (?:\S+ |traced )at (?P<file>\S+):\d+ for \w+")
_OUR_ARGUMENT = re.compile(r"\b(?:arrays|parts)\[(\d+)\]")


def fold(error: BaseException) -> None:
    """Removes the frames of this package and of JAX from the traceback of `error`.

    To be followed by a bare ``raise``, which adds no frame.
    """
    if jax.config.jax_traceback_filtering == "off":  # pyright: ignore[reportAttributeAccessIssue]
        return
    seen: set[int] = set()
    chained: BaseException | None = error
    while chained is not None and id(chained) not in seen:
        seen.add(id(chained))
        chained.__traceback__ = _folded(chained.__traceback__)
        chained = chained.__cause__ or chained.__context__


def _folded(tb: types.TracebackType | None) -> types.TracebackType | None:
    entries: list[types.TracebackType] = []
    while tb is not None:
        entries.append(tb)
        tb = tb.tb_next
    kept: types.TracebackType | None = None
    for entry, is_own in zip(reversed(entries), reversed(_own_flags(entries)), strict=True):
        if not is_own:
            kept = types.TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept


def _own_flags(entries: list[types.TracebackType]) -> list[bool]:
    """Which entries are of this package or JAX, or of the standard library and called by these."""
    flags: list[bool] = []
    for entry in entries:
        path = entry.tb_frame.f_code.co_filename
        is_stdlib = path.startswith(_STDLIB) and "site-packages" not in path
        flags.append(path.startswith(_OWN) or (is_stdlib and bool(flags) and flags[-1]))
    return flags


def name_arguments(error: Exception, fn: Callable[..., Any], name_of: Callable[[int], str]) -> None:
    """Puts `fn` and its arguments into an error of JAX about the value of a tracer.

    JAX names the function of ours that it has traced, and arguments by their numbers.

    Args:
        error: The error.
        fn: The user's function.
        name_of: From the number of an argument to what the user calls it.
    """
    if not error.args or not isinstance(error.args[0], str):
        return
    text = error.args[0]
    found = _TRACED_HERE.search(text)
    if found is None or not found["file"].startswith(PACKAGE_DIR):
        return
    named = _OUR_ARGUMENT.sub(lambda number: name_of(int(number[1])), text[found.end() :])
    error.args = (f"{text[: found.start()]}the function {_described(fn)}{named}", *error.args[1:])


def _described(fn: Any) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    code = getattr(fn, "__code__", None)
    name = getattr(fn, "__qualname__", repr(fn))
    return name if code is None else f"{name} at {code.co_filename}:{code.co_firstlineno}"


def argument_names(fn: Callable[..., Any], args: Any, kwargs: Any) -> dict[Any, tuple[str, str]]:
    """For each leaf of the arguments, which must be hashable, its parameter and where in that.

    Empty if `fn` tells no signature, or another one.
    """
    try:
        parameters = inspect.signature(fn).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return {}
    return {
        leaf: (name, path)
        for name, nested in parameters.items()
        for path, leaf in nest.leaves_with_path(nested)
    }
