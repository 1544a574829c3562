"""A few shapes with text, as SVG that is legible on light and on dark ground.

Colours are names, and what they are is in `THEMES`: in a file by itself the reader's system chooses
the theme, on the site the page does. Knows nothing of what is drawn.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Literal

Colour = Literal["plain", "one", "two", "three", "four", "shared"]

THEMES: Mapping[str, Mapping[str, str]] = {
    "light": {
        "text": "#1f2328", "quiet": "#59636e", "line": "#59636e", "plain": "#f6f8fa",
        "one": "#cfe8ff", "two": "#ffe3a3", "three": "#d3f0c8", "four": "#f8d2e4",
        "shared": "#e4dcfb",
    },
    "dark": {
        "text": "#f0f3f6", "quiet": "#a9b4c0", "line": "#a9b4c0", "plain": "#21262d",
        "one": "#12416e", "two": "#5e4300", "three": "#1d4d2b", "four": "#66234a",
        "shared": "#43307a",
    },
}  # fmt: skip
"""What each colour is, by theme."""

_CHARACTER = 0.56  # the width of a letter, of the size of the font, about


def variables(theme: str) -> str:
    """The colours of a theme as variables of CSS."""
    return "".join(f"--rx-{name}:{value};" for name, value in THEMES[theme].items())


STYLE = (
    f"svg.rx{{{variables('light')}}}"
    f"@media (prefers-color-scheme:dark){{svg.rx{{{variables('dark')}}}}}"
)


class Picture:
    """A drawing of a fixed size, to which shapes are added one after the other.

    Args:
        width: In units of about a pixel.
        height: Likewise.
        title: What it shows, for those who cannot see it.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._shapes: list[str] = []

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *lines: str,
        colour: Colour = "plain",
        size: float = 13,
        dashed: bool = False,
        top: bool = False,
    ) -> None:
        """A rectangle with lines of text in its middle, or at its top.

        Raises:
            ValueError: If the text does not fit, or the box is outside of the picture.
        """
        widest = max((len(line) for line in lines), default=0) * size * _CHARACTER
        tall = len(lines) * size * 1.35
        inside = min(x, y) >= 0 and x + width <= self.width and y + height <= self.height
        if widest > width or tall > height or not inside:
            raise ValueError(f"{lines} needs {widest:.0f} x {tall:.0f} at {x, y, width, height}")
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        fill = "none" if dashed else f"var(--rx-{colour})"
        self._shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" '
            f'fill="{fill}" stroke="var(--rx-line)"{dash}/>'
        )
        first = (
            y + size * 1.4 if top else y + height / 2 - (len(lines) - 1) * size * 0.65 + size / 3
        )
        for number, line in enumerate(lines):
            self.text(x + width / 2, first + number * size * 1.3, line, size=size)

    def text(
        self,
        x: float,
        y: float,
        line: str,
        *,
        size: float = 13,
        anchor: Literal["start", "middle", "end"] = "middle",
        quiet: bool = False,
        bold: bool = False,
        code: bool = False,
    ) -> None:
        """One line of text."""
        weight = ' font-weight="600"' if bold else ""
        family = ' font-family="ui-monospace, monospace"' if code else ""
        self._shapes.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" '
            f'fill="var(--rx-{"quiet" if quiet else "text"})"{weight}{family}>'
            f"{html.escape(line)}</text>"
        )

    def arrow(self, *points: tuple[float, float]) -> None:
        """A line through the points, with a head at the last one."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        (x0, y0), (x1, y1) = points[-2:]
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        dx, dy = (x1 - x0) / length * 8, (y1 - y0) / length * 8
        head = f"{x1:g},{y1:g} {x1 - dx - dy / 2:g},{y1 - dy + dx / 2:g} "
        head += f"{x1 - dx + dy / 2:g},{y1 - dy - dx / 2:g}"
        self._shapes.append(
            f'<polyline points="{path}" fill="none" stroke="var(--rx-line)" stroke-width="1.4"/>'
            f'<polygon points="{head}" fill="var(--rx-line)"/>'
        )

    def line(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """A thin line, such as an axis."""
        (x0, y0), (x1, y1) = start, end
        self._shapes.append(
            f'<line x1="{x0:g}" y1="{y0:g}" x2="{x1:g}" y2="{y1:g}" stroke="var(--rx-line)"/>'
        )

    def svg(self) -> str:
        """The whole file."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="rx" role="img" width="{self.width}" '
            f'viewBox="0 0 {self.width} {self.height}" font-family="system-ui, sans-serif">'
            f"<title>{html.escape(self.title)}</title><style>{STYLE}</style>\n"
            + "\n".join(self._shapes)
            + "\n</svg>\n"
        )
