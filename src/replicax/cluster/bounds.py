"""How large a cluster may be that somebody else describes: nothing is counted out beyond that."""

from __future__ import annotations

MAX_TASKS = 100_000
"""The most tasks of a job. A description with more is a mistake, and would fill the memory."""

_MAX_DIGITS = 18


def whole_number(text: object) -> int | None:
    """The number that a short string of digits writes; None for anything else.

    ``int`` takes digits of all scripts, and raises an error of its own for thousands of them.

    Example:
        >>> whole_number("007"), whole_number("-7"), whole_number("7" * 5000)
        (7, None, None)
    """
    if not isinstance(text, str) or not (text.isascii() and text.isdigit()):
        return None
    return int(text) if len(text) <= _MAX_DIGITS else None
