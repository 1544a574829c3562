"""Workers that do not do the same: an error that names them, on both, and nothing hangs."""

import json
import re

import pytest

from replicax.backend import comparing
from tests.multiprocess import behaviour
from tests.multiprocess.clusters import require_success, run_workers

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

SECONDS = 240
BOTH = r"worker 1 \(127.0.0.1:\d+\).*worker 0|worker 0 \(127.0.0.1:\d+\).*worker 1"

# For each check the error on each worker: its kind and what its text must have.
ERRORS = {
    "another_variable": [
        ("WorkersDifferError", r"the creation of variable 'w' differs.*Create the same variables")
    ]
    * 2,
    "another_name": [("WorkersDifferError", r"is at the creation of variable 'w[01]'")] * 2,
    "another_program": [("WorkersDifferError", r"the program of .*differs between workers")] * 2,
    "another_argument": [("WorkersDifferError", r"what is passed to every replica .*differs")] * 2,
    "an_error_on_one_worker": [
        ("WorkersDifferError", r"worker 1 .*failed.*ValueError: only here"),
        ("ValueError", "only here"),
    ],
    "other_calls_on_one_worker": [("WorkersDifferError", "is at (all_reduce|merge_call)")] * 2,
    "another_order": [
        (
            "WorkersDifferError",
            r"is at a (reduction \(SUM, axis \(0,\)\)|gathering) of float32\[4, 3\]",
        )
    ]
    * 2,
    "tpus_of_both_workers": [
        (
            "ValueError",
            r"replica 1 on /task:1/device:CPU:0, .*this is process 0 of 2, and TPUStrat",
        ),
        ("ValueError", r"replica 0 on /task:0/device:CPU:0, .*Use MultiWorkerMirroredStrategy"),
    ],
    "local_results_in_a_function": [("TraceError", r"on several workers.*strategy\.reduce")] * 2,
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the checks found on each of two workers."""
    ended = run_workers(
        ["-m", "tests.multiprocess.behaviour"],
        2,
        1,
        tmp_path_factory.mktemp("workers"),
        seconds=SECONDS,
    )
    require_success(ended)
    lines = [
        [line.removeprefix("found ") for line in worker.output.splitlines() if "found " in line]
        for worker in ended
    ]
    return [dict(map(json.loads, own)) for own in lines]


def test_every_check_was_made(found):
    names = {check.__name__ for check in behaviour.CHECKS}
    assert [set(own) for own in found] == [names, names]


@pytest.mark.parametrize("name", ERRORS)
def test_what_differs_is_named_on_both_workers(found, name):
    for own, (kind, text) in zip(found, ERRORS[name], strict=True):
        assert own[name] is not None
        assert own[name][0] == kind
        assert re.search(text, own[name][1], re.DOTALL), own[name][1]
        if kind == "WorkersDifferError":
            assert re.search(BOTH, own[name][1], re.DOTALL), own[name][1]


def test_an_argument_that_differs_later_is_refused_by_the_same_call_of_both_workers(found):
    for own in found:
        (kind, text), num_calls = own["another_argument_later"]
        assert kind == "WorkersDifferError"
        assert "passed to every replica of another_argument_later.<locals>.<lambda> in call" in text
        assert re.search(BOTH, text), text
        assert num_calls == 2 * comparing.EVERY


def test_a_description_says_which_worker_has_a_replica(found):
    for own in found:
        head, *rows = own["a_description_names_the_workers"][1:]
        assert head.split() == ["replica", "device", "kind", "worker"]
        for number, row in enumerate(rows):
            assert re.search(rf"cpu   worker {number} \(127.0.0.1:\d+\)$", row), row


def test_initial_values_are_those_of_worker_0(found):
    for own in found:
        assert own["initial_values_come_from_worker_0"] == [[0.0, 0.0, 0.0], True]
        assert own["initial_values_in_a_run_come_from_worker_0"] == 2.0


def test_a_value_that_another_worker_does_not_have_is_not_assigned(found):
    for own in found:
        error, value = own["another_value_assigned"]
        assert error[0] == "WorkersDifferError"
        assert "'w' differs between workers" in error[1]
        assert value == 1.0


def test_a_number_that_differs_between_workers_is_a_per_replica_value(found):
    for own in found:
        assert own["numbers_that_differ_are_per_replica"] == [3, "PerReplica", 1.0]


def test_a_variable_may_be_read_on_the_chief_only(found):
    for own in found:
        assert own["a_variable_read_on_the_chief_only"] == [12.0, 12.0, 12.0]


def test_summaries_are_written_by_the_chief_only(found):
    chief, other = (own["summaries"] for own in found)
    # The mean over the replicas of both workers, of 1 and 3.
    assert chief == [1, {"largest": [[3, 2.0]], "outside": [[3, 2.0]]}]
    assert other == [0, {"largest": [], "outside": []}]
