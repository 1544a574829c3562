"""Runs the suite and keeps its results; ``replicax bench`` calls `run` and shows them."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import driver, startup, targets
from benchmarks.cases import CASES, PEERS, SMOKE, WORKLOADS, Case
from benchmarks.driver import Measurement, Say
from benchmarks.targets import Verdict

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
MEASUREMENTS, MACHINE = "measurements.jsonl", "machine.json"
STARTS = 12
"""How often each program is started for W5."""

GROSS_LOSS = 2.0
"""Times the limit, beyond which the small run fails."""

_VERSIONS = (
    *("replicax", "jax", "jaxlib", "numpy", "optax", "flax", "keras"),
    *("tensorflow-cpu", "tensorflow", "torch"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """What to measure.

    Attributes:
        only: Workloads.
        peers: Who takes part, if installed.
        rounds: How many.
        minutes: After so many, no other case is begun.
        smoke: Whether to take the few cases of the small run.
    """

    only: tuple[str, ...] = tuple(WORKLOADS)
    peers: tuple[str, ...] = tuple(PEERS)
    rounds: int = 4
    minutes: float = 45.0
    smoke: bool = False

    def cases(self) -> list[Case]:
        """In the order of the table."""
        return [case for case in (SMOKE if self.smoke else CASES) if case.workload in self.only]


@dataclasses.dataclass(slots=True)
class Results:
    """What was measured, on what, and whether it is enough."""

    measurements: list[Measurement]
    machine: dict[str, Any]

    @property
    def verdicts(self) -> list[Verdict]:
        """The bounds for which there are measurements."""
        return targets.verdicts(self.measurements)

    def gross_losses(self) -> list[str]:
        """Where Replicax takes more than twice the time of the limit, of both kinds of time."""
        lost = []
        for case, rows in targets.by_case(self.measurements).items():
            if not {targets.OURS, targets.LIMIT} <= rows.keys():
                lost.append(f"{case[0]} {case[1]}: not measured")
                continue
            ours, limit = rows[targets.OURS], rows[targets.LIMIT]
            ratios = [targets.ratio(ours, limit, GROSS_LOSS, basis)[0] for basis in ("wall", "cpu")]
            if min(ratios) > GROSS_LOSS:
                lost.append(f"{case[0]} {case[1]}: {min(ratios):.2f} times the limit")
            if not ours.agrees:
                lost.append(f"{case[0]} {case[1]}: another loss than the hand-written program")
        return lost


def machine() -> dict[str, Any]:
    """Hardware and versions; no names of hosts, users or folders."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "load_before": round(os.getloadavg()[0], 1),
        "python": sys.version,
        **{name: version for name in _VERSIONS if (version := _version(name))},
    }


def _processor() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def run(choice: Choice, folder: pathlib.Path, say: Say) -> Results:
    """Measures what was chosen; every measurement is written as soon as it is there."""
    wanted = {name for case in choice.cases() for name in case.peers} & set(choice.peers)
    for name in PEERS:
        missing = driver.missing_packages(name)
        if name in wanted and missing:
            say(f"{name}: skipped, {', '.join(missing)} is not installed")
    peers = [name for name in choice.peers if not driver.missing_packages(name)]
    results = Results([], machine())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MACHINE).write_text(json.dumps(results.machine, indent=2) + "\n")
    with (folder / MEASUREMENTS).open("w") as lines:
        for row in _measured(choice, peers, say):
            lines.write(json.dumps(row.to_json()) + "\n")
            lines.flush()
            results.measurements.append(row)
    return results


def _measured(choice: Choice, peers: Sequence[str], say: Say) -> Iterator[Measurement]:
    begin = time.monotonic()

    def is_late(what: str) -> bool:
        late = time.monotonic() - begin > 60 * choice.minutes
        if late:
            say(f"{what}: skipped, {choice.minutes:g} minutes are over")
        return late

    for workload in choice.only:
        if workload == "W5" and not choice.smoke and not is_late("W5"):
            say(f"W5: {WORKLOADS['W5']}")
            yield from startup.measure(peers, rounds=STARTS, say=say)
        for case in choice.cases():
            name = f"{case.workload}, N={case.replicas}"
            if case.workload != workload or is_late(name):
                continue
            say(f"{name}: {WORKLOADS[workload]}")
            yield from driver.measure_case(case, peers, rounds=choice.rounds, say=say)


def load(folder: pathlib.Path) -> Results:
    """The results of an earlier run."""
    lines = (folder / MEASUREMENTS).read_text().splitlines()
    known: Mapping[str, Any] = json.loads((folder / MACHINE).read_text())
    return Results([Measurement.from_json(json.loads(line)) for line in lines], dict(known))
