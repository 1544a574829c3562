"""Warnings that are worth saying once.

A notice has a key; each key is shown once in the life of the process, through
`warnings`, at the line of the user's code that caused it.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
import types
import warnings

import jax

_shown: set[object] = set()
_lock = threading.Lock()
JAX_DIR = os.path.dirname(os.path.abspath(jax.__file__))
PACKAGE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class ReplicaxWarning(UserWarning):
    """Something works, but probably not the way it should.

    Example:
        >>> import warnings
        >>> import replicax as rx
        >>> warnings.simplefilter("error", rx.ReplicaxWarning)  # in tests, for example
    """


def notify_once(key: object, message: str, *, category: type[Warning] = ReplicaxWarning) -> None:
    """Warns with `message`, the first time this `key` is seen.

    Args:
        key: What identifies the notice, hashable.
        message: What the user should know and do.
        category: The warning class.
    """
    with _lock:
        if key in _shown:
            return
        _shown.add(key)
    frame = _user_frame()
    # With the module's name: by default Python shows a DeprecationWarning in __main__ only.
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
    )


def deprecate(name: str, instead: str) -> None:
    """Warns that `name` is deprecated, the first time it is used."""
    message = f"{name} is deprecated. Use {instead} instead."
    notify_once(("deprecated", name), message, category=DeprecationWarning)


def line_of(error: BaseException) -> str:
    """``file:line`` of the user's code that an error passed through last."""
    line = "an unknown line"
    for frame, number in traceback.walk_tb(error.__traceback__):
        path = frame.f_code.co_filename
        if not path.startswith((PACKAGE_DIR, JAX_DIR)) and "contextlib" not in path:
            line = f"{path}:{number}"
    return line


def forget(key: object) -> None:
    """Lets the notice with this `key` be shown again (for tests)."""
    with _lock:
        _shown.discard(key)


def user_line() -> tuple[str, int]:
    """File and line of the innermost frame outside this package and JAX."""
    frame = _user_frame()
    return frame.f_code.co_filename, frame.f_lineno


def _user_frame() -> types.FrameType:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((PACKAGE_DIR, JAX_DIR)):
        frame = frame.f_back
    return frame
