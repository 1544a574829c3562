"""Measures W5: how long a program takes until its first loss, always in a new process."""

from __future__ import annotations

import dataclasses
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.cases import CLOSE, LIMIT, OURS
from benchmarks.driver import Measurement, Say
from benchmarks.processes import ROOT, PeerError, environment

DEADLINE = 120.0
REPLICAS = (1, 2, 4, 8, 16)
CACHED_REPLICAS = (2,)
TRACE = "trace of 4,000 equations"
TRACED_REPLICAS = (2,)
STARTS_OF_OTHERS = 3
"""The bounds of peers that take seconds to import are far away."""


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """One kind of start, by each of several peers.

    Attributes:
        variant: What it is called.
        replicas: How many.
        programs: For each peer, the program of `benchmarks.starting`.
        is_cached: Whether compiled programs are kept from one process to the next.
    """

    variant: str
    replicas: int
    programs: Mapping[str, str]
    is_cached: bool = False


def starts(peers: Sequence[str]) -> list[Start]:
    """Everything that is measured."""
    programs = {peer: peer for peer in (LIMIT, OURS, "tensorflow") if peer in peers}
    of_jax = {peer: peer for peer in programs if peer != "tensorflow"}
    imports = {LIMIT: "import jax", OURS: "import replicax"}
    return [
        Start("import", 1, {peer: imports[peer] for peer in of_jax}),
        *(Start(TRACE, n, {peer: f"lower {peer}" for peer in of_jax}) for n in TRACED_REPLICAS),
        *(Start("first step", n, programs) for n in REPLICAS),
        *(Start("first step, cached", n, of_jax, is_cached=True) for n in CACHED_REPLICAS),
    ]


def measure(peers: Sequence[str], *, rounds: int, say: Say) -> Iterable[Measurement]:
    """Starts every program so many times, in alternating rounds."""
    for start in starts(peers):
        rows = {
            peer: Measurement("W5", start.variant, start.replicas, peer, value=1.0)
            for peer in start.programs
        }
        with tempfile.TemporaryDirectory() as folder:
            caching = _caching(folder) if start.is_cached else {}
            for index in range(rounds + start.is_cached):
                for peer, program in start.programs.items():
                    if peer not in rows or (index >= STARTS_OF_OTHERS and peer not in CLOSE):
                        continue
                    try:
                        times = _start(program, start.replicas, caching)
                    except PeerError as error:
                        say(f"W5 {start.variant}, N={start.replicas}: {peer} left out: {error}")
                        del rows[peer]
                        continue
                    if start.is_cached and index == 0:
                        continue  # this one filled the cache
                    for kind, value in times.items():
                        rows[peer].rounds.setdefault(kind, []).append(value)
        yield from rows.values()


def _caching(folder: str) -> dict[str, str]:
    return {
        "JAX_COMPILATION_CACHE_DIR": folder,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def _start(program: str, replicas: int, variables: Mapping[str, str]) -> dict[str, float]:
    """Microseconds of one start: on the clock, of all cores, and of its parts."""
    shared = environment(replicas)
    del shared["JAX_NUM_CPU_DEVICES"], shared["NPROC"]  # a program says so itself
    command = [sys.executable, "-m", "benchmarks.starting", program, str(replicas)]
    begin, cpu_before = time.perf_counter(), _cpu_of_children()
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            env=shared | dict(variables),
            cwd=ROOT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"no first step within {DEADLINE:.0f} s") from None
    wall, cpu = time.perf_counter() - begin, _cpu_of_children() - cpu_before
    if done.returncode or not done.stdout.strip():
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise PeerError(lines[-1] if lines else f"exit code {done.returncode}")
    parts = json.loads(done.stdout.splitlines()[-1])
    whole = {"wall_us": 1e6 * wall, "cpu_us": 1e6 * cpu}
    return whole | {f"{key}_us": value for key, value in parts.items()}


def _cpu_of_children() -> float:
    """Seconds of the processes that have ended; one at a time is started here."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
