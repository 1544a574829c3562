"""Reads what a platform put into the environment, with errors that name the variable or file."""

from __future__ import annotations

import os

from replicax.cluster import bounds
from replicax.core.errors import ClusterPlatformError, PlatformReplyError

_MAX_SHOWN = 60
_MAX_FILE_BYTES = 4 * 2**20


def missing(*names: str) -> list[str]:
    """Those of the variables that are not set.

    Example:
        >>> missing("PATH", "NO_SUCH_VARIABLE")
        ['NO_SUCH_VARIABLE']
    """
    return [name for name in names if name not in os.environ]


def required(name: str, advice: str) -> str:
    """The value of a variable.

    Args:
        name: The variable.
        advice: How to get it set.

    Raises:
        ClusterPlatformError: If it is not set or empty.

    Example:
        >>> required("PATH", "Start a shell.") != ""
        True
    """
    value = os.environ.get(name, "")
    if not value:
        state = "is empty" if name in os.environ else "is not set"
        raise ClusterPlatformError(f"the environment variable {name} {state}. {advice}")
    return value


def whole_number(name: str, advice: str) -> int:
    """The value of a variable that holds a number of tasks, or of one of them.

    Raises:
        ClusterPlatformError: If it is not set.
        PlatformReplyError: If it holds something else.

    Example:
        >>> os.environ["RANK_OF_THIS_EXAMPLE"] = "3"
        >>> whole_number("RANK_OF_THIS_EXAMPLE", "Start it with srun.")
        3
        >>> del os.environ["RANK_OF_THIS_EXAMPLE"]
    """
    value = required(name, advice)
    number = bounds.whole_number(value)
    if number is None or number > bounds.MAX_TASKS:
        expected = "a whole number" if number is None else f"at most {bounds.MAX_TASKS}"
        raise PlatformReplyError(
            f"the environment variable {name} is {value[:_MAX_SHOWN]!r}; expected {expected}. "
            f"{advice}"
        )
    return number


def read_file(path: str, what: str, advice: str = "") -> str:
    """The text of a small file that a platform has written.

    Args:
        path: The file.
        what: What messages call it, its path included.
        advice: What to do if it cannot be read.

    Raises:
        ClusterPlatformError: If it cannot be read.
        PlatformReplyError: If it is no text, or too long.

    Example:
        >>> read_file("/no/such/file", "the host file")
        Traceback (most recent call last):
        ...
        replicax.core.errors.ClusterPlatformError: the host file cannot be read: No such file ...
    """
    try:
        with open(path, "rb", buffering=0, opener=_open_at_once) as file:
            content = file.read(_MAX_FILE_BYTES + 1) or b""
    except (OSError, ValueError) as error:  # a path with a zero byte in it is a ValueError
        why = getattr(error, "strerror", None) or error
        raise ClusterPlatformError(f"{what} cannot be read: {why}. {advice}".strip()) from error
    if len(content) > _MAX_FILE_BYTES:
        raise PlatformReplyError(f"{what} is longer than {_MAX_FILE_BYTES} bytes.")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        near = content[error.start : error.start + 20]
        raise PlatformReplyError(f"{what} is no text: {near!r} at byte {error.start}.") from error


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would wait for its other end
