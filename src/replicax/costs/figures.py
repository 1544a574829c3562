"""Figures of simulations as people read them, and how their tables are shown.

A `Report` is a title, a table and lines below it, for text, notebooks and the terminal.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from replicax.core.shown import Rows, as_html, as_text


def duration(seconds: float) -> str:
    """A time with three digits.

    Example:
        >>> duration(0.0123), duration(4.2e-6), duration(0.0), duration(61.5)
        ('12.3 ms', '4.2 us', '0', '61.5 s')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return "0" if seconds < 5e-10 else f"{seconds * 1e6:.2g} us"


def count(number: float) -> str:
    """A number with its thousands apart.

    Example:
        >>> count(8192)
        '8,192'
    """
    return "any number of" if math.isinf(number) else f"{number:,.0f}"


class Report:
    """Something that is a title, a table, and lines of text."""

    def _title(self) -> str:
        raise NotImplementedError

    def _rows(self) -> Rows:
        """The table, its heading first."""
        raise NotImplementedError

    def _lines(self) -> Sequence[str]:
        raise NotImplementedError

    def _picture(self) -> str:
        """SVG for notebooks, or nothing."""
        return ""

    def __repr__(self) -> str:
        return "\n".join([self._title(), as_text(self._rows()), *self._lines()])

    def _repr_html_(self) -> str:
        below = "".join(f"<p>{html.escape(line)}</p>" for line in self._lines())
        return as_html(self._title(), self._rows()) + below + self._picture()

    def __rich__(self) -> Group:
        heading, *rows = self._rows()
        table = Table(title=self._title(), title_justify="left", title_style="bold")
        for column in heading:
            table.add_column(column, justify="left" if column == heading[-1] else "right")
        for row in rows:
            table.add_row(*map(Text, row))
        return Group(table, *map(Text, self._lines()))

    def show(self, console: Console | None = None) -> None:
        """Prints the table in the terminal, with its colours and width.

        Args:
            console: Where; the terminal if None.
        """
        (Console(highlight=False) if console is None else console).print(self)
