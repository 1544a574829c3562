"""What applies to every ``function`` of the process."""

from __future__ import annotations


class _FunctionSettings:
    """Switches.

    Attributes:
        run_eagerly: Whether functions run as plain Python.
    """

    __slots__ = ("run_eagerly",)

    def __init__(self) -> None:
        self.run_eagerly = False


SETTINGS = _FunctionSettings()
