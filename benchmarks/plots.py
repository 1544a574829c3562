"""Draws the ratios and the growth, as PNG and as one HTML page that needs no other file."""

from __future__ import annotations

import html
import io
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks import report, targets
from benchmarks.cases import LIMIT, OURS, PEERS, WORKLOADS
from benchmarks.driver import Measurement
from benchmarks.targets import Verdict

TEXT, GRID = "#24292f", "#d0d7de"
COLORS = {
    LIMIT: "#57606a",
    OURS: "#1f6feb",
    "pmap": "#8250df",
    "auto-sharded": "#1b7c83",
    "one psum each": "#bf3989",
    "nnx": "#0a7f42",
    "keras": "#cf222e",
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
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(len(cases) - 0.4, -0.6)
    axes.set_yticks([])
    _finish(axes, "Time of a step, as a multiple of the hand-written program's", "times the limit")
    return figure


def growth_figure(measurements: Sequence[Measurement]) -> Figure:
    """How costs grow: with replicas, with variables and with arguments."""
    figure = Figure(figsize=(9, 6.4), layout="constrained")
    (steps, starts), (variables, arguments) = figure.subplots(2, 2)
    _curves(steps, _by_replicas(measurements, "W1", "dispatch", "wall_us"), 1.0)
    _finish(steps, "Empty step (W1)", "replicas", "us a step")
    _curves(starts, _by_replicas(measurements, "W5", "first step", "wall_us"), 1e6)
    _finish(starts, "Process start to first step (W5)", "replicas", "s")
    for axes, kind in ((variables, "variables"), (arguments, "arguments")):
        points = {peer: targets.growth(measurements, kind, peer) for peer in (LIMIT, OURS)}
        _curves(axes, points, 1.0)
        _finish(axes, f"The calling thread, by {kind} (W10)", kind, "us a step")
    for axes in (steps, variables, arguments):
        axes.set_xscale("log")
        axes.set_yscale("log")
    starts.set_ylim(bottom=0)
    return figure


def _by_replicas(
    measurements: Sequence[Measurement], workload: str, variant: str, kind: str
) -> dict[str, list[tuple[int, float]]]:
    chosen = [row for row in measurements if row.case[:2] == (workload, variant)]
    return {
        peer: sorted((r.replicas, r.median(kind)) for r in chosen if r.peer == peer)
        for peer in PEERS
    }


def _curves(axes: Any, curves: Mapping[str, Sequence[tuple[int, float]]], scale: float) -> None:
    for peer, points in curves.items():
        if points:
            xs, ys = zip(*points, strict=True)
            values = [y / scale for y in ys]
            axes.plot(xs, values, "o-", color=COLORS[peer], markersize=4, label=peer)


def _finish(axes: Any, title: str, xlabel: str, ylabel: str = "") -> None:
    axes.set_title(title, loc="left", color=TEXT, fontsize=10, fontweight="bold")
    axes.set_xlabel(xlabel, color=TEXT, fontsize=9)
    axes.set_ylabel(ylabel, color=TEXT, fontsize=9)
    axes.grid(which="major", color=GRID, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=TEXT, which="both", labelsize=8)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, labelcolor=TEXT, fontsize=8)


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "replicax"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; color: #24292f; max-width: 75rem; margin: 2rem auto;
  padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: 0.15rem 0.6rem; text-align: left; border-bottom: 1px solid #d0d7de; }
tr.missed td { background: #ffebe9; } tr.ours td { background: #ddf4ff; }
svg { max-width: 100%; height: auto; font-family: system-ui, sans-serif; }
"""


def _html_table(headings: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in headings)
    body = "".join(
        f'<tr class="{kind}">'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for kind, cells in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def page(
    measurements: Sequence[Measurement],
    verdicts: Sequence[Verdict],
    machine: Mapping[str, Any],
    figures: Sequence[Figure],
) -> str:
    """The whole report as HTML."""
    facts = [("", [name, str(value)]) for name, value in machine.items()]
    bounds = [("" if v.holds else "missed", report.verdict_cells(v)) for v in verdicts]
    rows = [
        ("ours" if row[3].startswith(OURS) else "", row) for row in report.rows_of(measurements)
    ]
    workloads = [("", [name, what]) for name, what in WORKLOADS.items()]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>Replicax: measurements</title>",
        f"<style>{_STYLE}</style><h1>Replicax: measurements</h1>",
        _html_table(("", ""), facts),
        *(_svg(figure) for figure in figures),
        "<h2>What must hold</h2>",
        _html_table(report.VERDICT_HEADINGS, bounds),
        "<h2>All measurements</h2>",
        _html_table(report.HEADINGS, rows),
        "<h2>The workloads</h2>",
        _html_table(("", ""), workloads),
        "</html>\n",
    ]
    return "\n".join(parts)


def save(
    folder: pathlib.Path,
    measurements: Sequence[Measurement],
    verdicts: Sequence[Verdict],
    machine: Mapping[str, Any],
) -> list[pathlib.Path]:
    """Writes ``ratios.png``, ``growth.png`` and ``report.html``."""
    figures = {"ratios": ratios_figure(measurements), "growth": growth_figure(measurements)}
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=130, format="png")
    paths.append(folder / "report.html")
    whole = page(measurements, verdicts, machine, list(figures.values()))
    paths[-1].write_text(whole, encoding="utf-8")
    return paths
