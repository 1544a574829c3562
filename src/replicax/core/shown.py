"""Tables as text and, for notebooks, as HTML; sizes as people read them.

Text in cells is escaped. Knows nothing of what is shown; strategies, values and variables use it.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TypeAlias

Rows: TypeAlias = Sequence[Sequence[str]]
"""Rows of a table, the heading first."""


class Description(str):
    """Text that notebooks show as HTML: a title and tables."""

    __slots__ = ("_tables", "_title")

    _title: str
    _tables: Sequence[Rows]

    def __new__(cls, title: str, tables: Sequence[Rows]) -> Description:
        """The text of the title and the tables, in lines."""
        text = super().__new__(cls, "\n".join([title, *(as_text(rows) for rows in tables)]))
        text._title, text._tables = title, tables
        return text

    def _repr_html_(self) -> str:
        first, *others = self._tables
        return "".join([as_html(self._title, first), *(as_html("", rows) for rows in others)])


def as_text(rows: Rows) -> str:
    """The rows as lines, the cells of a column below one another."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def as_html(title: str, rows: Rows) -> str:
    """The rows as a table with a caption."""
    caption = f"<caption>{html.escape(title)}</caption>" if title else ""
    lines = [
        "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
        for row, tag in zip(rows, ["th", *["td"] * len(rows)], strict=False)
    ]
    return f"<table>{caption}{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def as_size(num_bytes: float) -> str:
    """A number of bytes in the largest unit that it has one of.

    Example:
        >>> as_size(12), as_size(2500), as_size(3_210_000_000)
        ('12 B', '2.5 kB', '3.2 GB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes:.0f} B"
