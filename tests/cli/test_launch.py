"""The launch command: options, what the terminal shows, exit codes, and signals to it."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from replicax.cli.launch import launch
from replicax.cli.main import main
from tests.backend.fresh_process import ROOT
from tests.launch.programs import PRELUDE, is_running, wait_until

START_SECONDS = 120  # importing JAX on a busy machine
READY = re.compile(r"ready (\d+) (\d+)")

WAITS_WITH_A_CHILD = """
child = os.fork()
if child:
    print("ready", os.getpid(), child, flush=True)
while True: signal.pause()
"""


def write_script(folder: pathlib.Path, source: str) -> str:
    path = folder / "train.py"
    path.write_text(PRELUDE + textwrap.dedent(source))
    return str(path)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(launch, arguments)


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command as a process of its own, which is ended by its id in any case."""
    process = subprocess.Popen(
        [sys.executable, "-c", "from replicax.cli.main import main; main()", "launch", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    timer = threading.Timer(START_SECONDS, process.kill)  # so that no read waits for ever
    timer.start()
    try:
        with process:
            yield process
    finally:
        timer.cancel()
        timer.join()
        process.kill()


def read_pids(process: subprocess.Popen[str], num_workers: int) -> list[int]:
    pids: list[int] = []
    while len(pids) < 2 * num_workers:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        pids += [int(pid) for found in READY.findall(line) for pid in found]
    return pids


# -- in this process ---------------------------------------------------------------------------


def test_the_chief_is_shown_and_the_others_are_in_files(tmp_path: pathlib.Path):
    script = write_script(tmp_path, "print('hello from', worker, *sys.argv[1:])")
    logs = tmp_path / "logs"
    result = invoke("--workers", "2", "--log-dir", str(logs), script, "--", "--epochs", "5")
    assert result.exit_code == 0
    assert result.stdout == "[worker 0] hello from 0 --epochs 5\n"
    assert "hello from 1 --epochs 5\n" in (logs / "worker-1.log").read_text()


def test_options_after_the_script_are_its_own_also_without_two_dashes(tmp_path: pathlib.Path):
    script = write_script(tmp_path, "print(*sys.argv[1:])")
    result = invoke("--workers", "1", script, "--workers", "7", "--", "x")
    assert result.stdout == "[worker 0] --workers 7 -- x\n"


def test_all_workers_are_shown_on_request(tmp_path: pathlib.Path):
    script = write_script(tmp_path, "print('hello')")
    result = invoke("--workers", "2", "--show", "all", script)
    assert sorted(result.stdout.splitlines()) == ["[worker 0] hello", "[worker 1] hello"]


def test_prefixes_have_colours_on_a_terminal(tmp_path: pathlib.Path):
    script = write_script(tmp_path, "print('hello')")
    result = CliRunner().invoke(launch, ["--workers", "2", "--show", "all", script], color=True)
    colours = {line.partition("[worker")[0] for line in result.stdout.splitlines()}
    assert len(colours) == 2
    assert all(colour.startswith("\x1b[") for colour in colours)


def test_a_failure_shows_everyone_and_ends_with_the_code_of_the_first(tmp_path: pathlib.Path):
    source = """
    print("I am", worker)
    if worker == 1: raise SystemExit("no data for worker 1")
    while True: signal.pause()
    """
    result = invoke("--workers", "3", "--show", "chief", write_script(tmp_path, source))
    assert result.exit_code == 1
    assert "[worker 1] no data for worker 1\n" in result.stdout
    assert "The run failed with exit code 1" in result.stderr
    assert "worker 1 failed first: exit code 1. Its last lines:" in result.stderr
    assert result.stderr.endswith("    I am 1\n    no data for worker 1\n")


def test_restarts_are_announced_and_a_success_after_them_is_one(tmp_path: pathlib.Path):
    script = write_script(tmp_path, "sys.exit(9 if attempt == 1 else 0)")
    result = invoke("--workers", "1", "--max-restarts", "1", "--backoff", "0", script)
    assert result.exit_code == 0
    assert "Attempt 1 ended (worker 0: exit code 9). Starting all workers again" in result.stderr
    assert "The run is done after" in result.stderr


def test_a_module_can_be_run_by_its_name():
    result = invoke("--workers", "1", "-m", "json.tool", "--", "--help")
    assert result.exit_code == 0
    assert "[worker 0] usage:" in result.stdout


def test_help_shows_examples_and_the_exit_codes():
    result = CliRunner().invoke(main, ["launch", "--help"])
    assert "replicax launch --workers 4 train.py" in result.output
    assert "75 after a preemption" in result.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("train.py", "Missing option '--workers'"),
        ("--workers 0 train.py", "0 is not in the range x>=1"),
        ("--workers 2 no_such.py", "there is no file 'no_such.py'"),
        ("--workers 2 --resources CPU=2 SCRIPT", "--resources are what Ray keeps for a worker"),
        ("--workers 2 --ray --resources CPU=no SCRIPT", "'CPU=no' is no amount of a resource"),
        ("--workers 2 --resources CPU=1,=2 SCRIPT", "'=2' is no amount of a resource"),
        ("--workers 2 --ray nowhere SCRIPT", "'nowhere' is no address of a cluster"),
        ("--workers 2 --ray SCRIPT SCRIPT", "--ray without an address stands before another"),
        ("--workers 1 --log-dir SCRIPT/logs SCRIPT", "cannot be made: Not a directory"),
    ],
)
def test_options_that_make_no_sense_are_explained(
    tmp_path: pathlib.Path, arguments: str, text: str
):
    script = write_script(tmp_path, "")
    result = invoke(*arguments.replace("SCRIPT", script).split())
    assert result.exit_code in (1, 2)
    assert text in " ".join(result.output.split())


# -- as a process of its own -------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_workers_and_what_they_started(tmp_path: pathlib.Path, number: int):
    script = write_script(tmp_path, WAITS_WITH_A_CHILD)
    with running("--workers", "2", "--show", "all", "--grace", "1", script) as process:
        pids = read_pids(process, num_workers=2)
        process.send_signal(number)
        assert process.wait(START_SECONDS) == 128 + number
        assert "The run was interrupted" in process.stderr.read()
    assert wait_until(lambda: not any(map(is_running, pids)))


def test_no_worker_outlives_a_launcher_that_is_killed(tmp_path: pathlib.Path):
    script = write_script(tmp_path, WAITS_WITH_A_CHILD)
    with running("--workers", "2", "--show", "all", script) as process:
        pids = read_pids(process, num_workers=2)
        assert all(map(is_running, pids))
        process.kill()
        assert process.wait(START_SECONDS) == -signal.SIGKILL
        assert wait_until(lambda: not any(map(is_running, pids)))


@pytest.mark.parametrize("option", ["--start-timeout", "--grace", "--backoff"])
@pytest.mark.parametrize("value", ["nan", "-nan", "inf", "-inf", "-1", "1e+300", "soon"])
def test_a_number_that_nobody_can_wait_for_is_refused(option: str, value: str, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    result = invoke("--workers", "1", option, value, str(script))
    assert result.exit_code == 2
    assert f"Invalid value for '{option}': " in result.output
    assert value in result.output.partition("Invalid value for")[2]
