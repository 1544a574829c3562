"""Every accident to every process of a launched training: how soon it is noticed, and what follows.

Each case is the training of `recovery` under ``replicax launch``. It ends with the bits of an
undisturbed run, after a restart where something had to end. ``python -m
tests.multiprocess.fault_matrix`` runs all cases and writes the table of seconds into
``docs/concepts/workers.md``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping

from tests.launch.programs import children, command_of, is_running
from tests.multiprocess.clusters import REPOSITORY, environment
from tests.multiprocess.programs import Worker as Process

PAGE = REPOSITORY / "docs" / "concepts" / "workers.md"
BEGIN, END = "<!-- fault matrix -->\n", "<!-- end of fault matrix -->\n"

LIMIT_SECONDS = 10.0
"""In which a process that cannot go on must be named, and the attempt be over."""

PATIENCE_SECONDS = 5
"""The ``timeout_seconds`` of the training: how long a worker may be silent."""

RUN_SECONDS = 240.0
PAUSE = "0.1"
HURT_AT = "[worker 0] step 4"
STOPPED_SECONDS = 3.0
RANDOM = random.Random(5)
SIZES = (2, 3)
VICTIMS = ("worker", "chief", "service", "launcher")
FAULTS = {
    "kill -9": "SIGKILL",
    "kill -9 in a save": "SIGKILL",
    "stop": "SIGSTOP",
    "TERM": "SIGTERM",
    "exit": "exit",
    "raise": "raise",
    "late join": "late",
}

GOES_ON = "goes on"
"""In the table where nothing has to be noticed, because the training is not disturbed."""

IMPOSSIBLE = {
    ("kill -9 in a save", "service"): "saves do not need it",
    ("kill -9 in a save", "launcher"): "as `kill -9`: workers die with it",
    **{(fault, who): "runs no user code" for fault in ("exit", "raise") for who in VICTIMS[2:]},
    **{("late join", who): "is there before the workers" for who in VICTIMS[2:]},
}
UNDISTURBED = {("TERM", "service"), ("stop", "launcher"), ("late join", "worker")} | {
    ("late join", "chief")
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One cell of the table.

    Attributes:
        fault: One of `FAULTS`.
        victim: One of `VICTIMS`.
        num_workers: How many workers train.
    """

    fault: str
    victim: str
    num_workers: int

    def __str__(self) -> str:
        return f"{self.fault} of the {self.victim}, {self.num_workers} workers"

    @property
    def goes_on(self) -> bool:
        """Whether the training does not need to be started again."""
        return (self.fault, self.victim) in UNDISTURBED


CASES = [
    Case(fault, victim, size)
    for size in SIZES
    for fault in FAULTS
    for victim in VICTIMS
    if (fault, victim) not in IMPOSSIBLE
]


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of a case.

    Attributes:
        seconds: From the accident to the end of the attempt; None if the training went on.
        bits: Of the state at the end.
        text: All that was printed.
    """

    seconds: float | None
    bits: str
    text: str


class Launch:
    """A launcher with its workers, whose output is read while it runs."""

    def __init__(self, folder: pathlib.Path, num_workers: int, **variables: str) -> None:
        command = [
            *(sys.executable, "-c", "from replicax.cli.main import main; main()"),
            *("launch", "--workers", str(num_workers), "--devices-per-worker", "1"),
            *("--show", "all", "--max-restarts", "1", "--backoff", "0"),
            *("-m", "tests.multiprocess.recovery", str(folder)),
        ]
        self.process = Process(command, {"FAULTS": "[]", **environment(1, **variables)})

    def pids_of(self, part: str) -> list[int]:
        """The launcher's children whose command has `part` in it."""
        found = [pid for pid in children(of=self.process.pid) if part in command_of(pid)]
        assert found, f"no process {part!r} in:\n{self.process.text}"
        return found

    def bits(self) -> str:
        """What the chief has printed at the end."""
        found = [line.partition("bits ")[2] for line in self.process.lines if "bits [" in line]
        assert len(found) == 1, self.process.text
        return found[0]


@contextlib.contextmanager
def launched(folder: pathlib.Path, num_workers: int, **variables: str) -> Iterator[Launch]:
    """A launch of which nothing is left behind."""
    launch = Launch(folder, num_workers, **variables)
    try:
        yield launch
    finally:
        launch.process.kill()


def train(folder: pathlib.Path, num_workers: int) -> str:
    """The bits of a run without accidents, which goes on where the folder's last one ended."""
    with launched(folder, num_workers) as launch:
        ended = launch.process.end(RUN_SECONDS)
        assert ended.code == 0, launch.process.text
        return launch.bits()


def run(case: Case, folder: pathlib.Path) -> Result:
    """Has the accident happen, and the training come to its end."""
    if case.victim == "launcher":
        return _hurt_launcher(case, folder)
    if case.victim == "service":
        return _hurt_service(case, folder)
    rank = 0 if case.victim == "chief" else case.num_workers - 1
    step: int | str = "in a save" if "in a save" in case.fault else RANDOM.randint(2, 9)
    fault = [1, rank, step, FAULTS[case.fault]]
    patience = PATIENCE_SECONDS if case.fault == "stop" else 60
    with launched(
        folder, case.num_workers, FAULTS=json.dumps([fault]), PAUSE=PAUSE, PATIENCE=str(patience)
    ) as launch:
        return _end_of(case, launch, None)


def _hurt_service(case: Case, folder: pathlib.Path) -> Result:
    with launched(folder, case.num_workers, PAUSE=PAUSE) as launch:
        launch.process.await_line(HURT_AT)
        since = time.monotonic()
        (service,) = launch.pids_of("service_process")
        os.kill(service, getattr(signal, FAULTS[case.fault]))
        return _end_of(case, launch, since)


def _hurt_launcher(case: Case, folder: pathlib.Path) -> Result:
    with launched(folder, case.num_workers, PAUSE=PAUSE) as launch:
        launch.process.await_line(HURT_AT)
        workers = launch.pids_of("tests.multiprocess.recovery")
        assert len(workers) == case.num_workers
        since = time.monotonic()
        launch.process.signal(getattr(signal, FAULTS[case.fault]))
        if case.goes_on:
            time.sleep(STOPPED_SECONDS)  # what is looked at: that nothing happens
            assert all(map(is_running, workers))
            launch.process.signal(signal.SIGCONT)
            return _end_of(case, launch, since)
        while any(map(is_running, workers)) and time.monotonic() - since < RUN_SECONDS:
            time.sleep(0.02)
        seconds = time.monotonic() - since
        launch.process.end(RUN_SECONDS)
    return Result(seconds, train(folder, case.num_workers), launch.process.text)


def _end_of(case: Case, launch: Launch, since: float | None) -> Result:
    ended = launch.process.end(RUN_SECONDS)
    text = "\n".join(ended.lines)
    assert ended.code == 0, text
    if case.goes_on:
        assert "Attempt 1 ended" not in text
        return Result(None, launch.bits(), text)
    since = ended.last("accident")[1] if since is None else since
    return Result(ended.last("Attempt 1 ended")[1] - since, launch.bits(), text)


# -- the table in the documentation ------------------------------------------------------------


def table(seconds: Mapping[Case, float | None]) -> str:
    """The table of the documentation."""
    rows = [
        "| | " + " | ".join(VICTIMS) + " |",
        "|---" * (len(VICTIMS) + 1) + "|",
    ]
    for fault in FAULTS:
        cells = [_cell(fault, victim, seconds) for victim in VICTIMS]
        rows.append(f"| {fault} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _cell(fault: str, victim: str, seconds: Mapping[Case, float | None]) -> str:
    if (fault, victim) in IMPOSSIBLE:
        return f"({IMPOSSIBLE[fault, victim]})"
    cases = [Case(fault, victim, size) for size in SIZES]
    found = [seconds[case] for case in cases if case in seconds]
    return " / ".join(GOES_ON if s is None else f"{s:.1f}" for s in dict.fromkeys(found))


def main() -> None:
    """Runs every case and writes the table."""
    seconds: dict[Case, float | None] = {}
    bits: dict[int, str] = {}
    with tempfile.TemporaryDirectory() as name:
        for size in SIZES:
            bits[size] = train(pathlib.Path(name, f"undisturbed-{size}"), size)
        for number, case in enumerate(CASES):
            result = run(case, pathlib.Path(name, str(number)))
            seconds[case] = result.seconds
            took = GOES_ON if result.seconds is None else f"{result.seconds:.2f} s"
            print(case, took, result.bits == bits[case.num_workers], sep=": ", flush=True)
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + BEGIN + table(seconds) + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
