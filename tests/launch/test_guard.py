"""The guard ends what a launcher that is gone has left."""

import os
import pathlib
import signal

import pytest

from replicax.launch.guard import Guard
from replicax.launch.guard_process import groups_left
from replicax.launch.plan import WorkerPlan
from replicax.launch.spawn import WorkerProcess
from tests.launch.programs import is_running, wait_until

WAITS = ("sh", "-c", "echo ready; while :; do sleep 3600; done")


def _wait_for_output(worker: WorkerProcess) -> None:
    assert wait_until(lambda: worker.read() is not None)


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        ([], []),
        ([b"+20\n", b"+30\n"], [20, 30]),
        ([b"+20\n", b"-20\n"], []),
        ([b"+20\n", b"-20\n", b"+20\n"], [20]),
        ([b"-20\n", b"+30\n"], [30]),
    ],
    ids=["none", "two", "one that ended", "its number again", "one that never started"],
)
def test_groups_that_were_not_taken_from_the_list_are_left(lines: list[bytes], left: list[int]):
    assert groups_left(lines) == left


def test_a_worker_that_was_not_ended_is_killed_when_the_pipe_ends():
    guard = Guard()
    worker = WorkerProcess(WorkerPlan(0, WAITS, dict(os.environ)), guard)
    try:
        _wait_for_output(worker)
        guard.close()  # as if the launcher were gone
        assert wait_until(lambda: worker.poll() == -signal.SIGKILL)
    finally:
        worker.end()


def _ignores(pid: int, number: int) -> bool:
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")]
    return bool(int(mask, 16) & 1 << number - 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_guard_survives_a_signal_that_ends_the_launcher(number: int):
    with Guard() as guard:
        assert wait_until(lambda: _ignores(guard.pid, number))


def test_a_guard_that_was_killed_is_replaced():
    with Guard() as guard:
        killed = guard.pid
        os.kill(killed, signal.SIGKILL)
        assert wait_until(lambda: not guard.is_alive)
        guard.forget(12345)  # no error
        guard.revive()
        assert guard.is_alive
        assert guard.pid != killed
    assert not is_running(guard.pid)
