"""What is left of a job on Ray when its launcher is interrupted or killed: nothing."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap

import pytest

from tests.backend.fresh_process import ROOT
from tests.launch.programs import PRELUDE, is_running, start_of, wait_until
from tests.multiprocess.clusters import environment
from tests.ray_cluster.clusters import descendants

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

# Each worker leaves a child in a session of its own, which no signal to a group reaches.
WAITS = """
if os.fork() == 0:
    os.setsid()
    while True: signal.pause()
print("ready", flush=True)
while True: signal.pause()
"""


def launcher(folder: pathlib.Path, temporary: str) -> subprocess.Popen[str]:
    script = folder / "train.py"
    script.write_text(PRELUDE + textwrap.dedent(WAITS))
    command = "from replicax.cli.main import main; main()"
    arguments = ["launch", "--ray", "--workers", "2", "--show", "all", "--grace", "1", str(script)]
    return subprocess.Popen(
        [sys.executable, "-c", command, *arguments],
        env=environment(1, TMPDIR=temporary, PYTHONPATH=str(ROOT / "src")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_launcher_that_gets_a_signal(tmp_path: pathlib.Path, number: int):
    shared_memory = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory(prefix="rx") as temporary:  # a short path, for sockets
        with launcher(tmp_path, temporary) as process:
            for _ in range(2):
                assert process.stdout.readline().endswith("ready\n")
            started = {pid: start_of(pid) for pid in descendants(of=process.pid)}
            assert len(started) > 8  # Ray's own, two actors, two workers and their children
            process.send_signal(number)
            code = process.wait(60)
        assert code == (-number if number == signal.SIGKILL else 128 + number)

        def left() -> list[int]:
            return [pid for pid, at in started.items() if is_running(pid) and start_of(pid) == at]

        assert wait_until(lambda: not left())
        assert wait_until(lambda: not os.listdir(temporary))
    assert set(os.listdir("/dev/shm")) <= shared_memory


def test_an_interruption_while_ray_starts_ends_it(tmp_path: pathlib.Path):
    with tempfile.TemporaryDirectory(prefix="rx") as temporary:
        with launcher(tmp_path, temporary) as process:
            assert wait_until(lambda: bool(os.listdir(temporary)))
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        assert os.listdir(temporary) == []
