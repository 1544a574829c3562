"""Workers that are killed, stopped, told to leave or cut off at random steps of a training."""

import contextlib
import json
import pathlib
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator

import pytest

from replicax.launch.plan import Job
from replicax.launch.restart import RestartLimits
from replicax.launch.run import Observer, Run
from replicax.launch.service import CoordinationService
from tests.launch.programs import children, descriptors, is_running, start_of
from tests.multiprocess import namespaces
from tests.multiprocess.clusters import environment
from tests.multiprocess.programs import LEAVE, TRAIN, Worker, program, start_workers
from tests.tiers import full_only

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

TIMEOUT = 5.0
LIMIT_SECONDS = 12.0
EXIT_SECONDS = 15.0
RANDOM = random.Random(20)


@pytest.fixture
def cluster(tmp_path: pathlib.Path) -> Iterator:
    """``cluster(2, num_devices=1, ...)``: workers without a launcher; none outlives the test."""
    with contextlib.ExitStack() as stack:

        def start(
            num_workers: int, num_devices: int = 1, source: str = TRAIN, **variables: str
        ) -> list[Worker]:
            inherited = environment(num_devices, TIMEOUT=str(TIMEOUT), **variables)
            workers = start_workers(program(tmp_path, source), num_workers, inherited)
            for worker in workers:
                stack.callback(worker.kill)
            return workers

        yield start


def check_lost(worker: Worker, lost: list[int], *, since: float, how: str = "") -> None:
    """The worker ended in time, with an error that names the lost ones, and by itself."""
    ended = worker.end()
    text = "\n".join(ended.lines[-40:])
    assert ended.code == 1, text
    assert "client.h" not in text  # JAX did not end it
    last, at = ended.last("WorkerLostError: ")
    named = last.partition("noticed by")[0]
    assert [rank for rank in range(3) if f"worker {rank} " in named] == lost, last
    assert how in named, last
    assert at - since < LIMIT_SECONDS, last
    assert ended.at - since < EXIT_SECONDS, text


# -- without a launcher ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "victim", "num_workers", "num_devices", "read"),
    [
        full_only(signal.SIGKILL, 1, 3, 1, "numpy"),
        (signal.SIGKILL, 1, 2, 2, "repr of a variable"),
        (signal.SIGKILL, 0, 2, 1, "numpy"),  # which has the service
        full_only(signal.SIGKILL, 0, 3, 2, "float"),
        full_only(signal.SIGSTOP, 1, 2, 2, "mirrored"),
        (signal.SIGSTOP, 0, 3, 1, "asarray"),
    ],
)
def test_the_others_name_a_worker_that_is_killed_or_stopped_in_time(
    cluster, number, victim, num_workers, num_devices, read
):
    workers = cluster(num_workers, num_devices, READ=read)
    for worker in workers:
        worker.await_line("stepping")
    since = time.monotonic()
    workers[victim].signal(number)
    for rank, worker in enumerate(workers):
        if rank != victim:
            check_lost(worker, [victim], since=since)
            if number == signal.SIGSTOP:
                # After 5 s, not the default of 10, for which the limit above leaves no time. With
                # two devices either may be named: one that waited, or, very likely after it, one
                # to which a connection was closed.
                closed = num_devices > 1 and "Connection closed by peer" in worker.text
                assert closed or "Timed out waiting 5000ms" in worker.text
                assert "Timed out waiting 10000ms" not in worker.text


def fault(victim: int, accident: str) -> str:
    """For the program: which worker has an accident, at a random step."""
    return json.dumps([victim, RANDOM.randrange(3, 20), accident])


@pytest.mark.parametrize(("victim", "read"), [full_only(0, "float"), (1, "repr")])
def test_an_error_in_one_worker_ends_all_of_them_without_an_abort(cluster, victim: int, read: str):
    workers = cluster(2, FAULT=fault(victim, "raise"), READ=read)
    workers[victim].await_line("accident")
    since = time.monotonic()
    check_lost(workers[1 - victim], [victim], since=since, how="(it ended with an error)")
    ended = workers[victim].end()
    assert ended.code == 1
    assert "ValueError: a mistake of the user" in ended.lines
    assert ended.at - since < EXIT_SECONDS


def test_a_worker_whose_program_ends_early_is_named_by_the_other(cluster):
    workers = cluster(2, FAULT=fault(0, "end"))
    workers[0].await_line("accident")
    since = time.monotonic()
    check_lost(workers[1], [0], since=since, how="(its program ended)")
    assert workers[0].end().code == 0


@pytest.mark.slow
def test_sigterm_ends_a_worker_that_no_handler_watches_and_the_other_names_it(cluster):
    workers = cluster(2, FAULT=fault(1, "SIGTERM"))
    workers[1].await_line("accident")
    check_lost(workers[0], [1], since=time.monotonic())
    assert workers[1].end().code == -signal.SIGTERM


@pytest.mark.parametrize(("leaving", "code"), [("late", 0), full_only("killed", 3)])
def test_a_worker_that_disconnects_late_or_never_disturbs_nobody_at_the_end(
    cluster, leaving: str, code: int
):
    workers = cluster(2, source=LEAVE, LEAVING=leaving)
    workers[1].await_line("leaving")
    since = time.monotonic()
    ended = [worker.end() for worker in workers]
    assert [worker.code for worker in ended] == [0, code], ended[1].lines
    assert ended[0].at - since < EXIT_SECONDS


# -- under the launcher ------------------------------------------------------------------------


# The first worker and the other die in turn. The one that is left waits for it in the next step.
ONE_STEP = """
import os, signal, sys
import replicax as rx

strategy = rx.MultiWorkerMirroredStrategy()
with strategy.scope():
    n = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM)

@rx.function
def step():
    n.assign_add(1.0)

strategy.run(step)
assert n.numpy() == 2.0
attempt = int(os.environ["REPLICAX_ATTEMPT"])
print("stepped", flush=True)
if attempt <= NUM_RESTARTS and strategy.is_chief == (attempt % 2 == 0):
    os.kill(os.getpid(), signal.SIGKILL) if attempt % 4 < 2 else sys.exit(3)
strategy.run(step)
n.numpy()
"""


@pytest.mark.slow
def test_many_restarts_leave_no_process_no_port_and_no_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    num_restarts = 100
    left = tmp_path / "left"
    left.mkdir()
    path = program(tmp_path, ONE_STEP.replace("NUM_RESTARTS", str(num_restarts)))
    for name, value in environment(1, TMPDIR=str(left)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", None)
    addresses: set[str] = set()
    starts: list[tuple[int, str | None]] = []  # numbers of processes are used again

    def note(*pids: int) -> None:
        starts.extend((pid, start_of(pid)) for pid in pids)

    class Watched(CoordinationService):
        def start(self, addresses_of_workers, *, attempt):
            found = super().start(addresses_of_workers, attempt=attempt)
            addresses.update(addresses_of_workers, found.values())
            note(self.pid)
            return found

    before, open_before = children(), descriptors()
    lines: list[str] = []
    summary = Run(
        Job((sys.executable, str(path)), num_workers=2, devices_per_worker=1),
        limits=RestartLimits(max_restarts=num_restarts, backoff_seconds=0.0),
        coordination=Watched(),
        observer=Observer(
            on_line=lambda worker_id, line: lines.append(line),
            on_start=lambda attempt, started: note(*started.values()),
        ),
    ).execute()
    assert (summary.code, len(summary.outcomes)) == (0, num_restarts + 1), "\n".join(lines[-40:])
    assert len([line for line in lines if line == "stepped"]) >= num_restarts  # by who then died
    assert len(starts) == 3 * (num_restarts + 1)
    assert all(start is not None for _, start in starts)
    assert not [pid for pid, start in starts if is_running(pid) and start_of(pid) == start]
    assert children() <= before
    assert descriptors() == open_before
    assert list(left.iterdir()) == []
    for address in addresses:
        host, _, port = address.partition(":")
        socket.create_server((host, int(port))).close()


# -- a network that is cut ---------------------------------------------------------------------


@pytest.fixture
def two_machines() -> Iterator[list[str]]:
    """Two network namespaces with a cable between them: 10.83.0.1 and 10.83.0.2."""
    with namespaces.made(2) as names:
        yield names


def test_workers_that_are_cut_off_from_each_other_both_raise(
    tmp_path: pathlib.Path, two_machines: list[str]
):
    path = program(tmp_path)
    hosts = ["10.83.0.1", "10.83.0.2"]
    with contextlib.ExitStack() as stack:
        workers = []
        for rank, (name, host) in enumerate(zip(two_machines, hosts, strict=True)):
            # The name of the machine is loopback, as on Debian, and the cluster has addresses.
            inside = namespaces.inside(name, namespaces.hosts_file(tmp_path, "127.0.1.1"))
            task = {"type": "worker", "index": rank}
            cluster = {"worker": [f"{host}:4700" for host in hosts]}
            config = json.dumps({"cluster": cluster, "task": task})
            variables = environment(1, TIMEOUT=str(TIMEOUT), TF_CONFIG=config)
            workers.append(Worker([*inside, sys.executable, str(path)], variables))
            stack.callback(workers[-1].kill)
        for worker in workers:
            worker.await_line("stepping")
        since = time.monotonic()
        for name, other in zip(two_machines, reversed(hosts), strict=True):
            route = namespaces.ip("-n", name, "-o", "route", "get", other).stdout
            device = route.partition(" dev ")[2].split()[0]
            wrong = ["lladdr", "02:00:00:00:00:99", "dev", device]  # packets go nowhere, silently
            assert namespaces.ip("-n", name, "neigh", "replace", other, *wrong).returncode == 0
        for rank, worker in enumerate(workers):
            check_lost(worker, [1 - rank], since=since)
