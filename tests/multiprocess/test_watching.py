"""A watched loop on several workers: who is slow, and that watching changes nothing else."""

import json

import pytest

from tests.multiprocess import watching_programs
from tests.multiprocess.checkpoint_programs import start

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]


def run(name, folder, *arguments, num_workers):
    """What each worker of a program has found."""
    program = watching_programs.__file__
    with start(name, folder, *arguments, num_workers=num_workers, file=program) as cluster:
        return cluster.results()


@pytest.mark.parametrize("num_workers", [2, 3])
def test_a_worker_that_sleeps_is_named(num_workers, tmp_path):
    chief, *others = run("train", tmp_path, "1", "0.03", num_workers=num_workers)

    assert chief["steps"] == watching_programs.NUM_STEPS
    assert chief["examples"] == 6 * watching_programs.NUM_STEPS
    paces = chief["workers"]
    assert [pace["steps"] for pace in paces] == [watching_programs.NUM_STEPS] * num_workers
    assert chief["slow"] == [paces[1]["name"]]
    assert paces[1]["own_seconds"] >= 0.03
    assert paces[1]["slowdown"] > 1.3
    # In each step the others wait for the one that sleeps; in the collective of the program.
    waiting = [pace["waiting_seconds"] for rank, pace in enumerate(paces) if rank != 1]
    assert min(waiting) > 0.02
    assert f"{paces[1]['name']} is slow: its steps take" in chief["text"]

    # The chief writes for all; the others know of themselves.
    line = json.loads(chief["line"])["watch"]
    assert line["slow_workers"] == chief["slow"]
    for rank, found in enumerate(others, 1):
        assert found["line"] is None
        assert [pace["name"] for pace in found["workers"]] == [paces[rank]["name"]]


def test_workers_that_are_alike_are_not_named(tmp_path):
    chief, _ = run("train", tmp_path, "all", "0.05", num_workers=2)
    assert len(chief["workers"]) == 2
    assert min(pace["own_seconds"] for pace in chief["workers"]) >= 0.05
    assert chief["slow"] == []


def test_a_worker_that_fails_is_an_error_on_the_others_as_without_a_watch(tmp_path):
    chief, failed = run("fail", tmp_path, num_workers=2)
    assert (failed["error"], failed["ended_by"]) == ("ZeroDivisionError", "ZeroDivisionError")
    assert chief["error"] == chief["ended_by"] == "WorkerLostError"
    assert chief["steps"] >= 20
    line = json.loads((tmp_path / "line-0").read_text())["watch"]
    assert line["ended_by"] == "WorkerLostError"
