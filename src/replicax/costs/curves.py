"""A plot of efficiency over the number of hosts, as SVG; knows nothing of steps and machines."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 560, 300, 48, 20, 34, 40
_COLOURS = {
    "compute": "#2a9d8f",
    "memory": "#457b9d",
    "link": "#e76f51",
    "latency": "#f4a261",
    "input": "#8d6cab",
    "launch": "#7f8c8d",
    "does not fit": "#c1121f",
}


def efficiency_plot(
    title: str, points: Sequence[tuple[float, float]], limits: Sequence[str]
) -> str:
    """The picture.

    Args:
        title: What stands above it.
        points: Numbers of hosts in ascending order, with the efficiency of each.
        limits: What limits each of them: the colour of its point.

    Returns:
        SVG with a background of its own, legible on light and on dark ground.

    Example:
        >>> plot = efficiency_plot("a step", [(1, 1.0), (8, 0.5)], ["compute", "link"])
        >>> plot.count("<circle"), plot.count(">link<")
        (2, 1)
    """
    most = max(1.0, *(efficiency for _, efficiency in points)) if points else 1.0
    last = max(math.log2(points[-1][0]) if points else 0.0, 1e-9)

    def at(hosts: float, efficiency: float) -> tuple[float, float]:
        x = _LEFT + math.log2(hosts) / last * (_WIDTH - _LEFT - _RIGHT)
        y = _HEIGHT - _BOTTOM - efficiency / most * (_HEIGHT - _TOP - _BOTTOM)
        return x, y

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="11" role="img">',
        f"<title>{html.escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="13">{html.escape(title)}</text>',
    ]
    for step in range(5):
        _, y = at(1, step * most / 4)
        parts.append(
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" '
            f'stroke="#dddddd"/><text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{step * most / 4:.0%}</text>"
        )
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points))
    parts.append(f'<polyline points="{line}" fill="none" stroke="#999999"/>')
    for (hosts, efficiency), limit in zip(points, limits, strict=True):
        x, y = at(hosts, efficiency)
        said = html.escape(f"{hosts:,} hosts: {efficiency:.0%}, {limit}")
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{_COLOURS.get(limit, "#333333")}">'
            f"<title>{said}</title></circle>"
            f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{hosts:,}</text>'
        )
    x = float(_LEFT)
    for limit in dict.fromkeys(limits):
        parts.append(
            f'<rect x="{x:.0f}" y="{_HEIGHT - 14}" width="9" height="9" '
            f'fill="{_COLOURS.get(limit, "#333333")}"/>'
            f'<text x="{x + 13:.0f}" y="{_HEIGHT - 6}">{html.escape(limit)}</text>'
        )
        x += 34 + 6.5 * len(limit)
    return "".join([*parts, "</svg>"])
