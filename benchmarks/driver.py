"""Measures the cases: all peers of a case at the same time, one after the other in each round."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks import timing
from benchmarks.cases import KERAS, LIMIT, PEERS, Case
from benchmarks.processes import PeerError, PeerProcesses, ending
from benchmarks.timing import KINDS

DEADLINE = 240.0
"""Seconds that any one answer may take: a start, a compilation or a round."""

TOLERANCE = 2e-3
"""How far the losses of two peers may be apart: they add in another order."""

CALIBRATION_RUNS = 4
MAX_RUNS = 10_000
GROWTH_STEPS, GROWTH_CHUNK = 10_000, 1000

Say = Callable[[str], None]


@dataclasses.dataclass(slots=True)
class Measurement:
    """What one peer needed for one variant of a case; one line of the results.

    Attributes:
        workload: W1 to W10.
        variant: Which kind of it.
        replicas: How many.
        peer: Who.
        value: The loss after the first steps.
        rounds: For each kind of time, one number a round.
        memory: Megabytes: the most so far, and now.
        agrees: Whether the value is that of the hand-written program.
    """

    workload: str
    variant: str
    replicas: int
    peer: str
    value: float = math.nan
    rounds: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    memory: dict[str, float] = dataclasses.field(default_factory=dict)
    agrees: bool = True

    @property
    def case(self) -> tuple[str, str, int]:
        """What it may be compared within."""
        return self.workload, self.variant, self.replicas

    def add(self, other: Measurement) -> None:
        """Adds what another process of the peer needed."""
        for kind, values in other.rounds.items():
            self.rounds[kind] += values
        self.agrees = self.agrees and other.agrees

    def median(self, kind: str) -> float:
        """Over the rounds; NaN if there is none."""
        return statistics.median(self.rounds[kind]) if self.rounds.get(kind) else math.nan

    def to_json(self) -> dict[str, Any]:
        """One line, with medians and spreads beside the rounds."""
        line = {k: v for k, v in dataclasses.asdict(self).items() if k not in ("rounds", "memory")}
        for kind, values in self.rounds.items():
            line[kind] = round(statistics.median(values), 3)
            line[f"{kind}_spread"] = round(timing.spread(values), 3)
        return {**line, **self.memory, "rounds": self.rounds}

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> Measurement:
        """The inverse of `to_json`."""
        names = [f.name for f in dataclasses.fields(cls) if f.name != "memory"]
        memory = {key: value for key, value in line.items() if key.endswith("_mb")}
        return cls(**{name: line[name] for name in names}, memory=memory)


def missing_packages(peer: str) -> list[str]:
    """What has to be installed before the peer can take part."""
    return [name for name in PEERS[peer].needs if importlib.util.find_spec(name) is None]


def measure_case(case: Case, peers: Sequence[str], *, rounds: int, say: Say) -> list[Measurement]:
    """Measures every variant of a case with those of `peers` that take part in it."""
    chosen = [peer for peer in case.peers if peer in peers]
    found = {(row.variant, row.peer): row for row in _started(case, chosen, rounds, say)}
    for _ in range(case.starts - 1):
        close = [peer for peer in chosen if peer in case.close]
        for row in _started(case, close, rounds, say):
            if first := found.get((row.variant, row.peer)):
                first.add(row)
    return list(found.values())


def _started(case: Case, peers: Iterable[str], rounds: int, say: Say) -> list[Measurement]:
    """Measures every variant in new processes."""
    with ending([]) as group:
        for peer in peers:
            group.append(PeerProcesses(peer, case, deadline=DEADLINE))
        return [
            row for variant in case.variants for row in _variant(case, variant, group, rounds, say)
        ]


def _variant(
    case: Case, variant: str, group: list[PeerProcesses], rounds: int, say: Say
) -> list[Measurement]:
    name = f"{case.workload} {variant}, N={case.replicas}"
    found: dict[str, Measurement] = {}

    def attempt(peer: PeerProcesses, action: Callable[[], None]) -> None:
        try:
            action()
        except PeerError as error:
            say(f"{name}: {peer.peer} left out: {error}")
            peer.end()
            group.remove(peer)
            found.pop(peer.peer, None)

    def build(peer: PeerProcesses) -> None:
        row = Measurement(case.workload, variant, case.replicas, peer.peer, peer.value())
        row.rounds = {kind: [] for kind in KINDS}
        found[peer.peer] = row

    runs: dict[str, int] = {}

    def calibrate(peer: PeerProcesses) -> None:
        least = PEERS[peer.peer].min_runs
        tried = max(least, CALIBRATION_RUNS)
        took = min(peer.measure(tried)["wall_us"] for _ in range(2))  # the first ones are slower
        per_run = took * _steps_per_run(variant) / 1e6
        runs[peer.peer] = max(least, min(MAX_RUNS, round(case.seconds / max(per_run, 1e-6))))

    def measure(peer: PeerProcesses) -> None:
        for kind, value in peer.measure(runs[peer.peer]).items():
            found[peer.peer].rounds[kind].append(value)

    def finish(peer: PeerProcesses) -> None:
        found[peer.peer].memory = peer.memory()
        peer.drop()

    # Two at a time: more would only share the same cores.
    everyone = list(group)
    for start in range(0, len(everyone), 2):
        pair = everyone[start : start + 2]
        for peer in pair:
            peer.start_build(variant)
        for peer in pair:
            attempt(peer, lambda p=peer: build(p))

    def measure_close(peer: PeerProcesses) -> None:
        if peer.peer in case.close:
            measure(peer)

    # The rounds of everyone come first: the n-th of one peer belongs to the n-th of another.
    rounds *= case.laps
    more = [measure_close] * rounds * (case.turns - 1)
    actions = [calibrate, *[measure] * rounds, *more, finish]
    if case.workload == "W9":
        actions = [lambda p: _grow(p, found[p.peer]), finish]
    for action in actions:
        for peer in list(group):
            attempt(peer, lambda p=peer, a=action: a(p))
    _compare_values(list(found.values()), name, say)
    return list(found.values())


def _steps_per_run(variant: str) -> int:
    return 64 if variant == "64 steps" else 1


def _grow(peer: PeerProcesses, row: Measurement) -> None:
    """Takes 10,000 steps; the memory is noted after each thousand."""
    sizes = []
    for _ in range(GROWTH_STEPS // GROWTH_CHUNK):
        for kind, value in peer.measure(GROWTH_CHUNK, "go_on").items():
            row.rounds[kind].append(value)
        sizes.append(peer.memory()["now_mb"])
    row.rounds["now_mb"] = sizes


def _compare_values(rows: list[Measurement], name: str, say: Say) -> None:
    limits = [row for peer in (LIMIT, KERAS) for row in rows if row.peer == peer]
    if not limits:
        return
    limit = limits[0]
    for row in rows:
        row.agrees = math.isclose(row.value, limit.value, rel_tol=TOLERANCE)
        if not row.agrees:
            say(
                f"{name}: {row.peer} has {row.value:.6g} after its first steps, {limit.peer} "
                f"{limit.value:.6g}. They do not do the same work."
            )
