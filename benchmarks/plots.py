"""Draws the ratios and the growth, as PNG."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks import targets
from benchmarks.cases import LIMIT, OURS, PEERS
from benchmarks.driver import Measurement

TEXT, GRID = "#24292f", "#d0d7de"
COLORS = {
    LIMIT: "#57606a",
    OURS: "#1f6feb",
    "pmap": "#8250df",
    "auto-sharded": "#1b7c83",
    "one psum each": "#bf3989",
    "nnx": "#0a7f42",
    "keras": "#cf222e",
    "replicax keras": "#54aeff",
    "tensorflow": "#f0883e",
    "tensorflow keras": "#9a6700",
    "ddp": "#e85aad",
}


def ratios_figure(measurements: Sequence[Measurement]) -> Figure:
    """One line a case, one dot a peer: how many times the hand-written program's time it takes."""
    cases = {c: r for c, r in targets.by_case(measurements).items() if LIMIT in r and len(r) > 1}
    figure = Figure(figsize=(9, 1.4 + 0.24 * len(cases)), layout="constrained")
    axes = figure.subplots()
    seen: set[str] = set()
    for place, ((workload, variant, replicas), rows) in enumerate(cases.items()):
        axes.text(
            -0.01,
            place,
            f"{workload}  {variant}, N={replicas}",
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="center",
            fontsize=8,
            color=TEXT,
        )
        for peer in sorted(rows, key=lambda peer: peer == OURS):
            if peer == LIMIT:
                continue
            value, _ = targets.ratio(rows[peer], rows[LIMIT])
            axes.plot(
                value,
                place,
                "D" if peer == OURS else "o",
                color=COLORS[peer],
                markersize=7 if peer == OURS else 5,
                alpha=1.0 if peer == OURS else 0.75,
                label=None if peer in seen else peer,
            )
            seen.add(peer)
    axes.axvline(1.0, color=COLORS[LIMIT], linewidth=1.2)
    _logarithmic(axes, "x")
    axes.set_ylim(len(cases) - 0.4, -0.6)
    axes.set_yticks([])
    _finish(axes, "Time of a step, as a multiple of the hand-written program's", "times the limit")
    return figure


def growth_figure(measurements: Sequence[Measurement]) -> Figure:
    """How costs grow: with replicas, with variables and with arguments."""
    panels = [
        ("Empty step (W1)", "replicas", _by_replicas(measurements, "W1", "dispatch", 1.0)),
        (
            "Process start to first step (W5)",
            "replicas",
            _by_replicas(measurements, "W5", "first step", 1e6),
        ),
    ]
    for kind in ("replicas", "variables", "arguments"):
        curves = {peer: targets.growth(measurements, kind, peer) for peer in (LIMIT, OURS)}
        panels.append((f"The calling thread, by {kind} (W10)", kind, curves))
    panels = [panel for panel in panels if any(panel[2].values())]
    num_rows = max(1, -(-len(panels) // 2))
    figure = Figure(figsize=(9, 3.2 * num_rows), layout="constrained")
    grid = figure.subplots(num_rows, 2, squeeze=False).ravel()
    for axes, (title, xlabel, curves) in zip(grid, panels, strict=False):
        _curves(axes, curves)
        is_start = "W5" in title
        _logarithmic(axes, "x")
        if is_start:
            axes.set_ylim(bottom=0)
        else:
            _logarithmic(axes, "y")
        _finish(axes, title, xlabel, "s" if is_start else "us a step")
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return figure


def _logarithmic(axes: Any, which: str) -> None:
    """A logarithmic axis with plain numbers."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _by_replicas(
    measurements: Sequence[Measurement], workload: str, variant: str, scale: float
) -> dict[str, list[tuple[int, float]]]:
    chosen = [row for row in measurements if row.case[:2] == (workload, variant)]
    return {
        peer: sorted((r.replicas, r.median("wall_us") / scale) for r in chosen if r.peer == peer)
        for peer in PEERS
    }


def _curves(axes: Any, curves: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    for peer, points in curves.items():
        if points:
            axes.plot(*zip(*points, strict=True), "o-", color=COLORS[peer], ms=4, label=peer)


def _finish(axes: Any, title: str, xlabel: str, ylabel: str = "") -> None:
    axes.set_title(title, loc="left", color=TEXT, fontsize=10, fontweight="bold")
    axes.set_xlabel(xlabel, color=TEXT, fontsize=9)
    axes.set_ylabel(ylabel, color=TEXT, fontsize=9)
    axes.grid(which="major", color=GRID, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=TEXT, which="both", labelsize=8)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, labelcolor=TEXT, fontsize=8)


def save(folder: pathlib.Path, measurements: Sequence[Measurement]) -> None:
    """Writes ``ratios.png`` and ``growth.png``."""
    figures = {"ratios": ratios_figure(measurements), "growth": growth_figure(measurements)}
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=130, format="png")
