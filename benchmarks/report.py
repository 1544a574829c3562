"""Tables of what was measured, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from benchmarks import timing
from benchmarks.cases import LIMIT, OURS, WORKLOADS
from benchmarks.driver import Measurement
from benchmarks.targets import Verdict, by_case


def duration(microseconds: float) -> str:
    """Three digits and a unit.

    >>> duration(12.34), duration(12_340), duration(2.5e6)
    ('12.3 us', '12.3 ms', '2.50 s')
    """
    for unit, size in (("us", 1.0), ("ms", 1e3), ("s", 1e6)):
        if microseconds < 1000 * size or unit == "s":
            value = microseconds / size
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
    raise AssertionError("unreachable")


def rows_of(measurements: Sequence[Measurement]) -> list[list[str]]:
    """The cells of the table: one row a peer, with its ratios to the limit and to Replicax."""
    rows = []
    for (workload, variant, replicas), peers in by_case(measurements).items():
        for index, (peer, row) in enumerate(peers.items()):
            head = [workload, variant, str(replicas)] if index == 0 else ["", "", ""]
            rows.append(
                [
                    *head,
                    peer + ("" if row.agrees else " (another loss)"),
                    duration(row.median("wall_us")),
                    f"{timing.spread(row.rounds['wall_us']):.0%}",
                    duration(row.median("cpu_us")),
                    *(_against(row, peers.get(LIMIT), kind) for kind in ("wall_us", "cpu_us")),
                    *(_against(row, peers.get(OURS), kind) for kind in ("wall_us", "cpu_us")),
                    f"{row.memory['peak_mb']:.0f} MB" if row.memory else "",
                ]
            )
    return rows


def _against(row: Measurement, other: Measurement | None, kind: str) -> str:
    if other is None or other is row:
        return ""
    return f"{timing.paired_ratio(row.rounds[kind], other.rounds[kind]):.2f}"


HEADINGS = (
    *("", "variant", "N", "peer", "wall", "spread", "CPU"),
    *("wall / limit", "CPU / limit", "wall / ours", "CPU / ours", "peak"),
)


def table_of(measurements: Sequence[Measurement]) -> Table:
    """All measurements."""
    table = Table(title="Time per step, medians of the rounds")
    for index, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if index in (0, 1, 3) else "right")
    for row in rows_of(measurements):
        if row[0]:
            table.add_section()
        table.add_row(*row, style="bold" if row[3].startswith(OURS) else "")
    return table


def number(value: float, unit: str) -> str:
    """A number with its unit.

    >>> number(1.05, "x"), number(12.0, "us")
    ('1.05x', '12 us')
    """
    return f"{value:.2f}{unit}" if unit in ("x", "") else f"{value:.3g} {unit}"


def verdict_cells(verdict: Verdict) -> list[str]:
    """One row of the table of bounds."""
    result = "holds" if verdict.holds else f"missed by {verdict.missed_by:.2f}x"
    if verdict.is_undecided:
        result = f"holds: up to {number(verdict.best or 0.0, verdict.unit)} is possible"
    return [
        verdict.cell,
        verdict.what,
        number(verdict.value, verdict.unit),
        f"{verdict.relation} {number(verdict.bound, verdict.unit)}",
        verdict.basis,
        result,
    ]


VERDICT_HEADINGS = ("cell", "what", "measured", "bound", "of", "")


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """What must hold."""
    table = Table(*VERDICT_HEADINGS, title="What must hold")
    for verdict in verdicts:
        table.add_row(*verdict_cells(verdict), style="" if verdict.holds else "red")
    return table


def missed_cells(verdicts: Sequence[Verdict]) -> list[str]:
    """The cells of which any bound is missed."""
    return sorted({verdict.cell for verdict in verdicts if not verdict.holds})


def legend() -> str:
    """What the workloads are."""
    return "\n".join(f"{name}: {what}" for name, what in WORKLOADS.items())
