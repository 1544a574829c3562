"""What must hold, and whether it does: the bounds that Replicax has to keep on a 2-core CPU.

A bound is on a ratio of times, both from the same rounds. On the clock if its rounds agree well
enough to tell whether the bound holds, otherwise of CPU time: on a machine that others use too, the
clock says little. *Not slower* is missed where the rounds show that Replicax is the slower one, by
the 95% interval of their median.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from benchmarks import timing
from benchmarks.cases import KERAS, LIMIT, OUR_KERAS, OURS
from benchmarks.driver import Measurement

NOISY = 0.5
"""The clock is not believed where its rounds spread by more than this part of what a bound allows:
2.5% for a bound of 1.05."""

AT_MOST, AT_LEAST = "at most", "at least"
NOT_SLOWER = 1.0
MAX_GROWTH_MB = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """One bound, and what was measured.

    Attributes:
        cell: The workload, and whether it is compared with the limit or with peers.
        what: What is bounded.
        value: What was measured.
        relation: at most or at least.
        bound: Of the value.
        unit: ``x`` for a ratio, or what the numbers are in.
        basis: Which time a ratio is of: wall, cpu, host; empty for anything else.
        best: The best that the rounds leave possible, for a bound that says *not slower*. Two
            measurements of one and the same program differ, and one of them is the slower one.
    """

    cell: str
    what: str
    value: float
    relation: str
    bound: float
    unit: str = "x"
    basis: str = ""
    best: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the value keeps the bound; NaN does not."""
        return self._is_kept or self.is_undecided

    @property
    def is_undecided(self) -> bool:
        """Whether only chance is between the value and the bound."""
        if self._is_kept or self.best is None or math.isnan(self.value):
            return False
        return self.best >= self.bound

    @property
    def _is_kept(self) -> bool:
        if self.relation == AT_MOST:
            return self.value <= self.bound
        return self.value >= self.bound

    @property
    def missed_by(self) -> float:
        """The factor between the bound and the value; 1 if it holds."""
        if self.holds:
            return 1.0
        worse, better = (
            (self.value, self.bound) if self.relation == AT_MOST else (self.bound, self.value)
        )
        return worse / better if better > 0 else math.inf


@dataclasses.dataclass(frozen=True, slots=True)
class Ratio:
    """A bound on a ratio: of Replicax to the limit, or of a peer to Replicax.

    Attributes:
        workload: W1 to W11.
        variant: The beginning of the variants it is for.
        replicas: For which numbers of replicas.
        peer: The limit, or a peer that has to be slower.
        bound: Of the ratio.
        basis: Always this time; empty to choose.
        ours: The peer that is Replicax.
    """

    workload: str
    variant: str
    replicas: tuple[int, ...]
    peer: str
    bound: float
    basis: str = ""
    ours: str = OURS


SEVERAL = (2, 4, 8, 16)
ANY = (1, *SEVERAL)

RATIOS = (
    Ratio("W1", "dispatch", SEVERAL, LIMIT, 1.15),
    Ratio("W1", "64 steps", ANY, LIMIT, 1.10),
    Ratio("W1", "dispatch", (2,), "tensorflow", 4.5),
    Ratio("W1", "dispatch", (8,), "tensorflow", 2.3),
    Ratio("W1", "64 steps", (4, 8), "tensorflow", NOT_SLOWER),
    Ratio("W2", "", ANY, LIMIT, 1.05),
    Ratio("W2", "", SEVERAL, "tensorflow", 1.25),
    Ratio("W2", "", SEVERAL, "nnx", 1.15),
    Ratio("W2", "", SEVERAL, "keras", 1.08),
    Ratio("W2", "", SEVERAL, "ddp", 1.3),
    Ratio("W3", "", SEVERAL, LIMIT, 1.05),
    Ratio("W3", "", SEVERAL, "auto-sharded", NOT_SLOWER),
    Ratio("W4", "", SEVERAL, LIMIT, 1.2),
    Ratio("W4", "", SEVERAL, "tensorflow", 5.0),
    Ratio("W5", "first step", ANY, "tensorflow", 1.7),
    Ratio("W5", "trace", SEVERAL, LIMIT, 1.3),
    Ratio("W6", "batches", SEVERAL, "tensorflow", 9.0),
    Ratio("W7", "", SEVERAL, LIMIT, 1.05),
    Ratio("W7", "", SEVERAL, "tensorflow", NOT_SLOWER),
    Ratio("W8", "", SEVERAL, LIMIT, 1.05),
    *(Ratio(work, "", ANY, KERAS, NOT_SLOWER, ours=OUR_KERAS) for work in ("W2", "W11")),
)

Rows = dict[str, Measurement]


def by_case(measurements: Sequence[Measurement]) -> dict[tuple[str, str, int], Rows]:
    """The peers of each variant of each case."""
    cases: dict[tuple[str, str, int], Rows] = {}
    for row in measurements:
        cases.setdefault(row.case, {})[row.peer] = row
    return cases


def ratio(
    numerator: Measurement, denominator: Measurement, bound: float = 1.2, basis: str = ""
) -> tuple[float, str]:
    """The ratio of two peers that a bound is on, and the time it is of."""
    if not basis:
        walls = [row.rounds["wall_us"] for row in (numerator, denominator)]
        paired = min(map(len, walls))  # one of them may have been started again
        walls = [wall[:paired] for wall in walls]
        is_noisy = max(map(timing.spread, walls)) > NOISY * abs(bound - 1.0)
        basis = "cpu" if is_noisy else "wall"
    kind = f"{basis}_us"
    return timing.paired_ratio(numerator.rounds[kind], denominator.rounds[kind]), basis


def verdicts(measurements: Sequence[Measurement]) -> list[Verdict]:
    """Every bound for which there are measurements."""
    cases = by_case(measurements)
    found = [*_ratios(cases), *_differences(cases), *_memory(cases), *_growth(measurements)]
    return sorted(found, key=lambda verdict: (int(verdict.cell[1:].split()[0]), verdict.cell))


def _name(case: tuple[str, str, int]) -> str:
    return f"{case[1]}, N={case[2]}"


def _ratios(cases: dict[tuple[str, str, int], Rows]) -> Iterator[Verdict]:
    for case, rows in cases.items():
        workload, variant, replicas = case
        for row in RATIOS:
            fits = row.workload == workload and variant.startswith(row.variant)
            if not fits or replicas not in row.replicas or not {row.ours, row.peer} <= rows.keys():
                continue
            if row.peer == LIMIT:
                value, basis = ratio(rows[row.ours], rows[LIMIT], row.bound, row.basis)
                yield Verdict(
                    f"{workload} limit", _name(case), value, AT_MOST, row.bound, basis=basis
                )
            else:
                value, basis = ratio(rows[row.peer], rows[row.ours], row.bound, row.basis)
                what = f"{_name(case)}, {row.peer}" + (f" / {row.ours}" if row.ours != OURS else "")
                best = None
                if row.bound == NOT_SLOWER:
                    kind = f"{basis}_us"
                    times = rows[row.peer].rounds[kind], rows[row.ours].rounds[kind]
                    best = timing.paired_interval(*times)[1]
                yield Verdict(
                    f"{workload} peers", what, value, AT_LEAST, row.bound, basis=basis, best=best
                )


def _differences(cases: dict[tuple[str, str, int], Rows]) -> Iterator[Verdict]:
    for case, rows in cases.items():
        if not {OURS, LIMIT} <= rows.keys():
            continue
        workload, variant, replicas = case
        more = {
            kind: timing.paired_difference(rows[OURS].rounds[kind], rows[LIMIT].rounds[kind])
            for kind in ("wall_us", "cpu_us")
        }
        least = min(more.values())
        if (workload, variant, replicas) == ("W1", "dispatch", 1):
            yield Verdict("W1 limit", f"{_name(case)}, more", least, AT_MOST, 15.0, "us")
        if workload == "W5" and not variant.startswith("trace"):
            bound = 0.15 if variant == "import" else 0.3
            yield Verdict("W5 limit", f"{_name(case)}, more", least / 1e6, AT_MOST, bound, "s")
        if (workload, variant) == ("W6", "batches"):
            least = min(rows[OURS].median("wall_us"), rows[OURS].median("cpu_us"))
            yield Verdict("W6 limit", f"{_name(case)}, a batch", least, AT_MOST, 100.0, "us")


def _memory(cases: dict[tuple[str, str, int], Rows]) -> Iterator[Verdict]:
    for case, rows in cases.items():
        if case[0] == "W3" and OURS in rows:
            ours = rows[OURS].memory["peak_mb"]
            for peer, bound in ((LIMIT, 1.05), ("tensorflow", 0.7)):
                if peer in rows:
                    cell = "W9 peers" if peer == "tensorflow" else "W9 limit"
                    value = ours / rows[peer].memory["peak_mb"]
                    yield Verdict(cell, f"peak memory of W3, to {peer}", value, AT_MOST, bound)
        if case[0] == "W9" and OURS in rows:
            sizes = rows[OURS].rounds["now_mb"]
            grown = sizes[-1] - sizes[len(sizes) // 2]  # before, the allocator fills its arenas
            what = "growth from step 6,000 to 10,000"
            yield Verdict("W9 limit", what, grown, AT_MOST, MAX_GROWTH_MB, "MB")


def growth(measurements: Sequence[Measurement], kind: str, peer: str) -> list[tuple[int, float]]:
    """Sizes and microseconds of the calling thread, of one of the three curves of W10."""
    points = []
    for row in measurements:
        if row.workload != "W10" or row.peer != peer or not row.variant.endswith(kind):
            continue
        size = row.replicas if kind == "replicas" else int(row.variant.split()[0])
        points.append((size, row.median("host_us")))
    return sorted(points)


def _growth(measurements: Sequence[Measurement]) -> Iterator[Verdict]:
    for kind in ("replicas", "variables", "arguments"):
        points = growth(measurements, kind, OURS)
        if len(points) > 1:
            exponent = timing.growth_exponent(*zip(*points, strict=True))
            what = f"growth exponent with {kind}"
            yield Verdict("W10 limit", what, exponent, AT_MOST, 1.1, "", "host")
    starts = [r for r in measurements if r.case[:2] == ("W5", "first step") and r.peer == OURS]
    if len(starts) > 1:
        ends = [row.median("cpu_us") for row in sorted(starts, key=lambda row: row.replicas)]
        what = "first step, most replicas to fewest"
        yield Verdict("W5 limit", what, ends[-1] / ends[0], AT_MOST, 1.25, basis="cpu")
