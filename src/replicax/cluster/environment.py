"""Reads what a platform put into the environment, with errors that name the variable."""

from __future__ import annotations

import os

from replicax.core.errors import ClusterPlatformError


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
    """The value of a variable that holds 0 or a higher whole number.

    Raises:
        ClusterPlatformError: If it is not set, or holds something else.

    Example:
        >>> os.environ["RANK_OF_THIS_EXAMPLE"] = "3"
        >>> whole_number("RANK_OF_THIS_EXAMPLE", "Start it with srun.")
        3
        >>> del os.environ["RANK_OF_THIS_EXAMPLE"]
    """
    value = required(name, advice)
    if not (value.isascii() and value.isdigit()):
        raise ClusterPlatformError(
            f"the environment variable {name} is {value!r}; expected a whole number. {advice}"
        )
    return int(value)
