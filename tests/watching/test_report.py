"""What the figures look like in a summary and on the screen, and who is slow."""

import json

import pytest

from replicax.core.recording import NUM_PHASES, Recorded
from replicax.watching.memory import MemoryUse
from replicax.watching.pace import WorkerPace, with_slowdowns
from replicax.watching.report import made
from replicax.watching.view import picture

# Of loop, dispatch, input, devices, workers and compiling.
SECONDS = (1.0, 2.0, 3.0, 14.0, 0.0, 5.0)


def report(*, seconds=SECONDS, workers=(), steps=400, examples=1600, retraces=None):
    programs = {"train_step": 1 + sum((retraces or {}).values())}
    recorded = Recorded(seconds, 0, 0, {}, programs, retraces or {})
    memory = MemoryUse("GPU:1", 1_500_000_000, 2_000_000_000)
    return made("Two replicas", recorded, memory, workers, steps=steps, examples=examples)


def pace(name, own, waiting, steps=100):
    return WorkerPace(name, steps, own, waiting)


def test_rates_and_shares_are_of_the_time_without_compiling():
    found = report()
    assert (found.seconds, found.compiling_seconds) == (25.0, 5.0)
    assert (found.steps_per_second, found.examples_per_second) == (20.0, 80.0)
    assert found.shares == {
        "input": 0.15, "dispatch": 0.1, "devices": 0.7, "workers": 0.0, "loop": 0.05,
    }  # fmt: skip


def test_nothing_has_passed_yet():
    found = report(seconds=(0.0,) * NUM_PHASES, steps=0, examples=0)
    assert (found.steps_per_second, found.examples_per_second) == (0.0, 0.0)
    assert set(found.shares.values()) == {0.0}


def test_the_summary():
    assert str(report(retraces={"train_step": 2, "evaluate": 1})).splitlines() == [
        "Two replicas: 400 steps in 25.0 s, 5.0 s of them compiling",
        "steps      20.0 per second",
        "examples   80.0 per second",
        "time       input 15%, dispatch 10%, devices 70%, workers 0%, loop 5%",
        "memory     1.5 GB on GPU:1, 2.0 GB at most",
        "programs   4 traced; again: train_step 2 times, evaluate once",
    ]


def test_the_screen():
    workers = [pace("a", 0.001, 0.03), pace("b", 0.03, 0.001), pace("c", 0.001, 0.03)]
    lines = picture(report(steps=40), report(workers=workers)).plain.splitlines()
    assert lines == [
        "Two replicas   0:00:25",
        "                   now       overall         total",
        "steps/s            2.0          20.0           400",
        "examples/s        80.0          80.0         1,600",
        "",
        "input        15%  ██████",
        "dispatch     10%  ████",
        "devices      70%  ████████████████████████████",
        "workers       0%  ",
        "loop          5%  ██",
        "",
        "memory    1.5 GB on GPU:1, 2.0 GB at most",
        "programs  1 traced in 5.0 s",
        "b is slow: its steps take 15.5 times the median, 30 ms of each its own",
    ]
    assert max(map(len, lines)) < 80


def test_the_line_of_json_has_all_of_it():
    workers = [pace("a", 0.001, 0.03), pace("b", 0.03, 0.001)]
    found = json.loads(report(workers=workers).to_json())["watch"]
    assert found["slow_workers"] == ["b"]
    assert found["workers"][1] == {
        "name": "b", "steps": 100, "own_seconds": 0.03, "waiting_seconds": 0.001, "slowdown": 15.5,
    }  # fmt: skip


# -- who is slow ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "waiting", "slow"),
    [
        ([1, 1, 1], [9, 9, 9], []),
        ([1, 8, 1], [9, 2, 9], ["1"]),
        ([1, 2, 1], [49, 48, 49], []),  # twice the Python of a step that the devices take 48 for
        ([1, 4], [4, 1], ["1"]),  # the middle of two would be 3.5, and 5 not 1.3 times that
        ([5, 5, 1, 1, 1], [1, 1, 5, 5, 5], ["0", "1"]),
        ([3], [0], []),
    ],
)
def test_a_slow_worker_waits_least_and_does_most_itself(own, waiting, slow):
    rows = zip(own, waiting, strict=True)
    workers = [pace(str(i), 1e-3 * one, 1e-3 * other) for i, (one, other) in enumerate(rows)]
    assert report(workers=workers).slow_workers == tuple(slow)


def test_nobody_is_named_after_a_few_steps():
    few = [pace("a", 0.001, 0.03, steps=9), pace("b", 0.03, 0.001, steps=9)]
    assert [worker.slowdown for worker in with_slowdowns(few)] == [1.0, 1.0]
    assert with_slowdowns([]) == ()
