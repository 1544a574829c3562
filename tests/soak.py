"""Half an hour of training under the launcher, in which something is killed every minute.

``python -m tests.soak --minutes 30``: two workers save every 50 steps. Once a minute, at a random
moment, one of the workers or the coordination service is killed, and the launcher starts all again.
In the end the state must have the bits of an undisturbed run, and memory, threads and descriptors
of the launcher and of the workers must not have grown. Prints one JSON object with the figures.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence

from replicax.launch.interruption import Interruption
from replicax.launch.plan import Job
from replicax.launch.restart import RestartLimits
from replicax.launch.run import Observer, Run
from replicax.launch.service import CoordinationService
from tests.multiprocess.clusters import environment

SAVE_EVERY = 50
PAUSE_SECONDS = 0.05
SAMPLE_SECONDS = 1.0
WARM_STEPS = 4 * SAVE_EVERY
"""Of an attempt, after which its processes have all the threads and memory that they need."""

LEAST_SAMPLES = 12

MOST_GROWTH_MB = 5.0
MOST_GROWTH = 0.5
"""Of a count of threads or descriptors; a median of two halves may be off by one half."""

MAX_RESTARTS = 10_000
MANY = 100_000_000
"""Steps of a training that is asked to end."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """What a process uses.

    Attributes:
        memory_mb: Resident.
        threads: How many it has.
        descriptors: How many it has open.
    """

    memory_mb: float
    threads: int
    descriptors: int


def look_at(pid: int) -> Sample | None:
    """What the process uses now; None if it is gone."""
    folder = pathlib.Path(f"/proc/{pid}")
    try:
        lines = (folder / "status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines)
        memory = int(status["VmRSS"].split()[0]) / 1024
        return Sample(memory, int(status["Threads"]), len(list((folder / "fd").iterdir())))
    except (OSError, KeyError):  # a process that has ended and is not awaited has no memory
        return None


class Soak:
    """One launched training: kills, samples, and what it printed."""

    def __init__(self, folder: pathlib.Path, *, steps: int, leak: str | None = None) -> None:
        self._command = (sys.executable, "-m", "tests.multiprocess.recovery", str(folder))
        self._steps = steps
        self._leak = leak or ""
        self._service = CoordinationService()
        self._over = threading.Event()
        self._pids: dict[str, int | None] = {}
        self._is_stepping = threading.Event()
        self._first_step: int | None = None
        self._is_warm = False
        self.interruption = Interruption()
        self.kills: list[str] = []
        self.samples: dict[tuple[int, str], list[Sample]] = collections.defaultdict(list)
        self.attempts = 0
        self.last_step = 0
        self.bits = ""
        self.lines: collections.deque[str] = collections.deque(maxlen=30)

    def run(self) -> int:
        """Trains to the end, or until it is interrupted; gives the exit code."""
        os.environ.update(
            environment(
                1,
                FAULTS="[]",
                STEPS=str(self._steps),
                SAVE_EVERY=str(SAVE_EVERY),
                PAUSE=str(PAUSE_SECONDS if self._steps == MANY else 0.0),
                LEAK=self._leak,
                LEAK_AT=str(2 * WARM_STEPS),
            )
        )
        watch = threading.Thread(target=self._sample, daemon=True)
        watch.start()
        summary = Run(
            Job(self._command, num_workers=2, devices_per_worker=1, grace_seconds=60.0),
            limits=RestartLimits(max_restarts=MAX_RESTARTS, backoff_seconds=0.0),
            coordination=self._service,
            interruption=self.interruption,
            observer=Observer(on_line=self._on_line, on_start=self._on_start),
        ).execute()
        self._over.set()
        watch.join()
        return summary.code

    def kill_until(self, end: float, rng: random.Random) -> None:
        """One kill a minute at a random moment, then asks the training to end."""
        while time.monotonic() < end - 60.0:
            minute = time.monotonic() + 60.0
            self._over.wait(rng.uniform(0.0, 55.0))
            self._is_stepping.wait()
            victim = rng.choice(["worker 0", "worker 1", "service"])
            if (pid := self._pids[victim]) is not None:
                self._is_stepping.clear()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                self.kills.append(victim)
            self._over.wait(max(minute - time.monotonic(), 0.0))
        self._over.wait(end - time.monotonic())
        self._is_stepping.wait()
        self.interruption.add(signal.SIGTERM)

    def _on_start(self, attempt: int, pids: Mapping[int, int]) -> None:
        self.attempts = attempt
        self._first_step, self._is_warm = None, False
        # Its own: the service of the next attempt starts before this is called again.
        self._pids = {f"worker {worker_id}": pid for worker_id, pid in pids.items()}
        self._pids["service"] = self._service.pid

    def _on_line(self, worker_id: int, line: str) -> None:
        self.lines.append(f"[worker {worker_id}] {line}")
        if line.startswith("step "):
            number = int(line.split()[1])
            if self._first_step is None:
                self._first_step = number
            self.last_step, self._is_warm = number, number - self._first_step >= WARM_STEPS
            self._is_stepping.set()
        elif line.startswith("bits "):
            self.bits = line

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            if not self._is_warm:
                continue
            for name, pid in {"launcher": os.getpid(), **self._pids}.items():
                attempt = 0 if name == "launcher" else self.attempts
                if pid is not None and (sample := look_at(pid)) is not None:
                    self.samples[attempt, name].append(sample)


def growths(samples: Mapping[tuple[int, str], Sequence[Sample]]) -> dict[str, dict[str, float]]:
    """By how much processes of each name grew in an attempt, while it was warm.

    An attempt's growth is that of the median, from its first third to its last: a save and a
    request to the service have a thread and descriptors while they last. Of memory the worst
    attempt counts. One thread more is also what unlucky samples of one attempt may show, so of
    threads and descriptors it is the median attempt: what leaks in each of them moves it by one.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for (_, name), row in samples.items():
        if len(row) < LEAST_SAMPLES:
            continue
        parts = row[: len(row) // 3], row[-(len(row) // 3) :]
        for field in dataclasses.fields(Sample):
            first, last = (
                statistics.median(getattr(each, field.name) for each in part) for part in parts
            )
            found.setdefault(name, {}).setdefault(field.name, []).append(last - first)
    return {
        name: {
            field: round(max(each) if field == "memory_mb" else statistics.median(each), 1)
            for field, each in of_name.items()
        }
        for name, of_name in found.items()
    }


def is_flat(grown: Mapping[str, Mapping[str, float]]) -> bool:
    """Whether nothing of `growths` is a leak."""
    return all(
        row["memory_mb"] <= MOST_GROWTH_MB
        and row["threads"] <= MOST_GROWTH
        and row["descriptors"] <= MOST_GROWTH
        for row in grown.values()
    )


def main() -> int:
    """Prints the figures; fails if something was lost or has grown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--leak",
        choices=["thread", "descriptor"],
        help="let each worker leak one in each attempt, which must be found",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        disturbed = Soak(folder / "disturbed", steps=MANY, leak=options.leak)
        end = time.monotonic() + 60.0 * options.minutes
        killer = threading.Thread(
            target=disturbed.kill_until, args=(end, random.Random(options.seed)), daemon=True
        )
        killer.start()
        disturbed.run()
        steps = disturbed.last_step + SAVE_EVERY
        finished = Soak(folder / "disturbed", steps=steps)
        undisturbed = Soak(folder / "undisturbed", steps=steps)
        codes = [finished.run(), undisturbed.run()]
    grown = {"disturbed": growths(disturbed.samples), "undisturbed": growths(undisturbed.samples)}
    figures = {
        "minutes": options.minutes,
        "steps": steps,
        "kills": dict(collections.Counter(disturbed.kills)),
        "attempts": disturbed.attempts,
        "equal_bits": bool(finished.bits) and finished.bits == undisturbed.bits,
        "growth": grown,
    }
    print(json.dumps(figures), flush=True)
    flat = all(map(is_flat, grown.values()))
    if codes != [0, 0] or not figures["equal_bits"] or not flat:
        print("\n".join([*disturbed.lines, *finished.lines, *undisturbed.lines]), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
