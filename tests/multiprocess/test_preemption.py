"""SIGTERM on any worker lets all of them save at the same step and leave, with real processes."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

import replicax as rx
from replicax.cluster.spec import ClusterSpec
from replicax.cluster_resolver import SimpleClusterResolver
from replicax.launch.exit_codes import PREEMPTED
from tests.multiprocess import preemption_programs
from tests.multiprocess.checkpoint_programs import ROOT, start
from tests.multiprocess.clusters import environment
from tests.tiers import full_only

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

PROGRAMS = preemption_programs.__file__
LAUNCH = "from replicax.cli.main import main; main()"


def results(cluster):
    files = [cluster.folder / f"result-{rank}" for rank in range(len(cluster.processes))]
    return [json.loads(file.read_text()) for file in files]


def test_sigterm_on_any_worker_lets_all_save_at_the_same_step_and_go_on_later(tmp_path):
    reached = [0, 0]
    for victim in (1, 0):
        with start("preempted", tmp_path, "default", file=PROGRAMS) as cluster:
            cluster.wait_for("training-0")
            os.kill(cluster.processes[victim].pid, signal.SIGTERM)
            codes = cluster.wait(60)
            assert codes == [PREEMPTED, PREEMPTED], cluster.output()
            one, other = results(cluster)
        assert one == other
        assert one["begin"] == reached
        reached = one["end"]
        assert reached[1] >= one["begin"][1] + 5
        assert reached[0] == reached[1]  # two workers, half a unit each: one a step

    with start("preempted", tmp_path, "watched", file=PROGRAMS) as cluster:
        cluster.wait_for("training-0")
        began = time.monotonic()
        (cluster.folder / "leave").touch()
        assert cluster.wait(60) == [7, 7], cluster.output()
        took = time.monotonic() - began
        one, other = results(cluster)
    assert one == other
    assert one["begin"] == reached
    (_, first), (_, second) = one["saves"]  # at once, and when the grace period was over
    assert one["begin"][0] < first < second == one["end"][0]
    assert took < 30


def test_a_worker_that_waits_for_the_others_to_agree_stays_alive(tmp_path):
    # It was a deadlock: the wait kept Python from passing on what the others say.
    with start("paused", tmp_path, file=PROGRAMS) as cluster:
        assert cluster.wait(60) == [PREEMPTED, PREEMPTED], cluster.output()
        one, other = results(cluster)
    assert one["calls"] == other["calls"]
    assert one["gap"] < preemption_programs.PAUSE_SECONDS / 3


@pytest.mark.parametrize("how", ["storm", full_only("late"), full_only("handlers")])
def test_workers_leave_at_one_step_whenever_and_however_often_they_are_told(how, tmp_path):
    with start("told", tmp_path, how, file=PROGRAMS) as cluster:
        assert cluster.wait(180) == [PREEMPTED, PREEMPTED], cluster.output()
        one, other = results(cluster)
    assert one["w"] == other["w"]
    assert 0 < one["w"] < preemption_programs.NUM_TOLD_STEPS


@pytest.mark.slow
def test_a_worker_that_is_told_after_the_others_have_ended_goes_on_to_its_end(tmp_path):
    with start("told", tmp_path, "over", file=PROGRAMS) as cluster:
        assert cluster.wait(90) == [0, 0], cluster.output()


@pytest.mark.slow
def test_a_worker_that_dies_while_all_agree_is_named_by_the_others(tmp_path):
    with start("told", tmp_path, "lost", file=PROGRAMS) as cluster:
        code, killed = cluster.wait(90)
        assert (code, killed) == (1, -signal.SIGKILL), cluster.output()
        seconds = json.loads((cluster.folder / "result-0").read_text())["seconds"]
        said = (cluster.folder / "output-0").read_text()
    assert re.search(r"WorkerLostError: worker 1 \(.*\) has gone .* at the step to leave at", said)
    assert seconds < preemption_programs.LATE_SECONDS + 10


def test_a_process_that_is_told_again_until_it_has_ended_leaves_as_if_told_once(tmp_path):
    process = subprocess.Popen(
        [sys.executable, PROGRAMS, "alone", str(tmp_path)], env=environment(1), cwd=ROOT
    )
    try:
        wait_for_text(tmp_path / "ready", process)
        end, num_told = time.monotonic() + 60, 0
        while process.poll() is None and time.monotonic() < end:
            process.terminate()
            num_told += 1
            time.sleep(0.001)
    finally:
        process.kill()
    assert process.wait() == PREEMPTED
    assert num_told > 10
    assert rx.latest_checkpoint(tmp_path) is not None


TOTAL = 40


def launch(folder):
    program = [PROGRAMS, "--", "launched", str(folder), str(TOTAL)]
    command = ["launch", "--workers", "2", "--devices-per-worker", "1", "--backoff", "0"]
    with (folder / "output").open("a") as output:
        return subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *command, *program],
            env=environment(1),
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1, "launcher"])
def test_a_preempted_run_under_the_launcher_ends_with_the_same_bits(
    victim, uninterrupted, tmp_path
):
    with launch(tmp_path) as launcher:
        try:
            pid = int(wait_for_text(tmp_path / "pid-1-1", launcher))
            os.kill(launcher.pid if victim == "launcher" else pid, signal.SIGTERM)
            code = launcher.wait(120)
        finally:
            launcher.kill()
    if victim == "launcher":  # it lets its workers save, and starts nothing again
        assert code == PREEMPTED, (tmp_path / "output").read_text()
        before = len(read_rows(tmp_path / "steps-0"))
        assert 0 < before < TOTAL
        with launch(tmp_path) as launcher:
            try:
                code = launcher.wait(120)
            finally:
                launcher.kill()
    assert code == 0, (tmp_path / "output").read_text()

    rows = [read_rows(tmp_path / f"steps-{rank}") for rank in range(2)]
    assert rows[0] == rows[1]
    if victim != "launcher":
        assert {attempt for attempt, _, _ in rows[0]} == {"1", "2"}
    assert [number for _, number, _ in rows[0]] == [str(n) for n in range(TOTAL)]  # each step once
    assert [bits for *_, bits in rows[0]] == uninterrupted


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The variable after each step, in one process with as many replicas."""
    alone = tmp_path_factory.mktemp("alone")
    done = subprocess.run(
        [sys.executable, PROGRAMS, "launched", str(alone), str(TOTAL)],
        env=environment(2),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [bits for *_, bits in read_rows(alone / "steps-0")]


def wait_for_text(path, process, seconds=90):
    end = time.monotonic() + seconds
    while not (path.exists() and path.read_text()):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    return path.read_text()


def read_rows(path):
    return [line.split() for line in pathlib.Path(path).read_text().splitlines()]


def test_a_handler_of_workers_that_were_not_joined_is_refused():
    spec = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    resolver = SimpleClusterResolver(ClusterSpec(spec), task_type="worker", task_id=0)
    with pytest.raises(ValueError, match=re.escape("knows 2 workers, which this process has not")):
        rx.experimental.PreemptionCheckpointHandler(resolver, rx.Checkpoint(n=1), "unused")


def test_a_watcher_hears_which_worker_was_told_and_waits_until_it_has_gone(tmp_path):
    with start("watched_by_all", tmp_path, file=PROGRAMS) as cluster:
        results = cluster.results()
    assert [result["before"] for result in results] == [None, None]
    assert "worker 1" in results[0]["message"]
    assert "was told to leave (SIGTERM)" in results[0]["message"]
    assert results[0]["message"] == results[1]["message"]
    assert results[0]["has left"]
