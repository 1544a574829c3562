"""The process that keeps a cluster: whatever descends from its command ends with it."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from replicax.ray_cluster.local import KEEPER
from tests.launch.programs import is_running, wait_until

# A child, a grandchild in a session of its own, and a great-grandchild whose parent has ended.
FAMILY = """
import os, signal, sys
for _ in range(3):
    if os.fork():
        break
    os.setsid()
os.write(1, b"%d\\n" % os.getpid())  # at once, as four processes write
if os.getpid() == os.getsid(0) and sys.argv[1:] == ["orphan"]:
    os._exit(0)
while True: signal.pause()
"""


def start(folder: pathlib.Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(KEEPER), str(folder), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def pids_of(keeper: subprocess.Popen[str], count: int) -> list[int]:
    assert keeper.stdout is not None
    return [int(keeper.stdout.readline()) for _ in range(count)]


@pytest.mark.parametrize("arguments", [[], ["orphan"]], ids=["all alive", "orphans"])
def test_all_that_descends_from_the_command_ends_with_the_pipe(tmp_path, arguments: list[str]):
    folder = tmp_path / "folder"
    folder.mkdir()
    with start(folder, sys.executable, "-c", FAMILY, *arguments) as keeper:
        pids = pids_of(keeper, 4)
        keeper.stdin.close()
        assert keeper.wait(30) == 0
    assert not any(map(is_running, pids))
    assert not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_does_not_end_the_keeper(tmp_path, number: int):
    with start(tmp_path / "none", sys.executable, "-c", FAMILY) as keeper:
        pids = pids_of(keeper, 4)
        os.kill(keeper.pid, number)
        assert all(map(is_running, pids))
        keeper.stdin.close()
        assert keeper.wait(30) == 0
    assert not any(map(is_running, pids))


def test_a_command_that_ends_ends_its_keeper_and_what_it_left(tmp_path):
    source = "import os, signal\nif os.fork(): os._exit(0)\nprint(os.getpid(), flush=True)\n"
    with start(tmp_path / "none", sys.executable, "-c", source + "signal.pause()") as keeper:
        (pid,) = pids_of(keeper, 1)
        assert keeper.wait(30) == 0
    assert wait_until(lambda: not is_running(pid))
