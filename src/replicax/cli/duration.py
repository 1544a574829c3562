"""The type of options that are a length of time, in seconds or minutes as the option says."""

import math
from typing import Any

import click

MAX_DURATION = 1e8
"""Seconds of three years. Far longer times are beyond what the system can wait for."""


class Duration(click.FloatRange):
    """A number that is 0 or more, and finite: ``nan`` passes every comparison of a plain range.

    Args:
        min_open: Whether 0 is refused.

    Example:
        >>> Duration().convert("2.5", None, None)
        2.5
    """

    def __init__(self, *, min_open: bool = False) -> None:
        super().__init__(min=0, max=MAX_DURATION, min_open=min_open)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number that was written, if it is finite and in the range."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number to wait for, such as 2.5.", param, ctx)
        return number
