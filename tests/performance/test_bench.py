"""The bench command: what it refuses, and what it makes of results; `make bench-smoke` measures."""

import json
import pathlib
import platform

import pytest
from click.testing import CliRunner, Result

from benchmarks import __main__ as command
from benchmarks import suite, targets
from benchmarks.cases import CASES, KERAS, LIMIT, OUR_KERAS, OURS, PEERS, SMOKE, WORKLOADS, Case
from benchmarks.driver import Measurement, measure_case

ROOT = pathlib.Path(__file__).parents[2]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(command.bench, arguments, env={"COLUMNS": "200"})


def row(workload, variant, replicas, peer, us, *, memory=100.0):
    """A measurement of three equal rounds."""
    rounds = {kind: [us] * 3 for kind in ("wall_us", "cpu_us", "host_us")}
    memory = {"peak_mb": memory, "now_mb": memory}
    return Measurement(workload, variant, replicas, peer, 1.0, rounds, memory)


@pytest.fixture
def folder(tmp_path):
    """Results of an earlier run, one of whose bounds is missed."""
    rows = [
        *(row("W1", "dispatch", n, LIMIT, 100.0 * n) for n in (1, 2, 4)),
        *(row("W1", "dispatch", n, OURS, 105.0 * n) for n in (1, 2, 4)),
        row("W1", "dispatch", 2, "tensorflow", 700.0),
        *(
            row("W10", f"{n} variables", 2, peer, 10.0 + n)
            for n in (10, 100)
            for peer in (LIMIT, OURS)
        ),
        *(
            row("W10", f"{n} arguments", 2, peer, 10.0 + n)
            for n in (1, 10)
            for peer in (LIMIT, OURS)
        ),
        *(row("W5", "first step", n, peer, 2e6) for n in (1, 16) for peer in (LIMIT, OURS)),
    ]
    lines = [json.dumps(one.to_json()) for one in rows]
    (tmp_path / suite.MEASUREMENTS).write_text("\n".join(lines) + "\n")
    (tmp_path / suite.MACHINE).write_text(json.dumps(suite.machine()))
    return tmp_path


def test_results_are_shown_with_what_holds_and_drawn(folder):
    result = invoke("--show", str(folder))
    assert result.exit_code == 0, result.output
    assert "Cells missed: W1 peers" in result.output
    assert "missed by 1.35x" in result.output
    assert (folder / "ratios.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "growth.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--only", "W1,W12", "W12 is not among W1, W2"),
        ("--peers", "horovod", "horovod is not among hand-written, replicax"),
        ("--only", ",", "nothing is not among W1"),
    ],
)
def test_an_unknown_name_is_refused_with_those_that_exist(option, value, message):
    result = invoke(option, value)
    assert result.exit_code == 2
    assert message in result.output


def test_a_second_run_of_a_day_does_not_replace_the_first(tmp_path):
    names = []
    for _ in range(3):
        folder = command._unused(tmp_path / "2026-11-16")
        folder.mkdir()
        names.append(folder.name)
    assert names == ["2026-11-16", "2026-11-16-2", "2026-11-16-3"]


def test_the_machine_is_described_without_names_of_hosts_or_folders():
    known = suite.machine()
    assert known["cores"] and known["jax"]
    text = json.dumps(known)
    assert "/" not in text.replace("x86_64", "")
    assert platform.node() not in text


def test_every_workload_has_cases_whose_peers_and_modules_exist():
    assert {case.workload for case in CASES} | {"W5"} == set(WORKLOADS)
    for case in (*CASES, *SMOKE):
        pair = {KERAS, OUR_KERAS} if case.workload == "W11" else {LIMIT, OURS}
        assert pair <= set(case.peers) <= set(PEERS)
    for peer in PEERS.values():
        assert (ROOT / "benchmarks" / "peers" / f"{peer.module}.py").is_file()


def test_a_measurement_survives_its_line():
    one = row("W3", "adam", 2, OURS, 5.0)
    again = Measurement.from_json(json.loads(json.dumps(one.to_json())))
    assert again == one


def test_the_clock_is_not_believed_where_its_rounds_differ():
    ours, limit = row("W2", "adam", 2, OURS, 11.0), row("W2", "adam", 2, LIMIT, 10.0)
    assert targets.ratio(ours, limit) == (1.1, "wall")
    ours.rounds["wall_us"] = [11.0, 40.0, 90.0]
    assert targets.ratio(ours, limit) == (1.1, "cpu")


def test_a_bound_that_was_not_measured_is_no_verdict_and_one_without_a_number_is_missed():
    assert targets.verdicts([row("W2", "adam", 2, OURS, 1.0)]) == []
    assert not targets.Verdict("W2 limit", "x", float("nan"), targets.AT_MOST, 1.0).holds


def test_not_slower_is_missed_only_where_the_rounds_say_so():
    ours, peer = row("W3", "adam", 2, OURS, 10.0), row("W3", "adam", 2, "auto-sharded", 10.0)
    ours.rounds = dict.fromkeys(ours.rounds, [10.0] * 24)
    peer.rounds = dict.fromkeys(peer.rounds, [9.9] * 16 + [10.1] * 8)
    (verdict,) = targets.verdicts([ours, peer])
    assert verdict.value == 0.99
    assert verdict.is_undecided
    assert verdict.holds
    peer.rounds = dict.fromkeys(peer.rounds, [9.9] * 19 + [10.1] * 5)  # too often to be chance
    (verdict,) = targets.verdicts([ours, peer])
    assert not verdict.holds
    assert not verdict.is_undecided


def test_keras_under_a_strategy_is_compared_with_keras_alone():
    ours, peer = row("W11", "adam", 1, OUR_KERAS, 8.0), row("W11", "adam", 1, KERAS, 10.0)
    (verdict,) = targets.verdicts([ours, peer])
    assert (verdict.cell, verdict.what) == ("W11 peers", "adam, N=1, keras / replicax keras")
    assert verdict.value == 1.25
    assert verdict.holds


def test_gross_loss_is_twice_the_limit_by_the_clock_and_by_cpu_time():
    ours, limit = row("W1", "dispatch", 2, OURS, 25.0), row("W1", "dispatch", 2, LIMIT, 10.0)
    assert suite.Results([ours, limit], {}).gross_losses() == ["W1 dispatch: 2.50 times the limit"]
    ours.rounds["cpu_us"] = [19.0] * 3
    assert suite.Results([ours, limit], {}).gross_losses() == []
    ours.agrees = False
    (loss,) = suite.Results([ours, limit], {}).gross_losses()
    assert "another loss than the hand-written program" in loss


@pytest.mark.cluster
def test_a_case_is_measured_in_processes_whose_losses_agree():
    said: list[str] = []
    case = Case("W1", 2, ("dispatch",), (LIMIT, OURS), seconds=0.01, starts=2, close=(OURS,))
    rows = measure_case(case, (LIMIT, OURS), rounds=2, say=said.append)
    assert [(one.peer, one.agrees) for one in rows] == [(LIMIT, True), (OURS, True)], said
    assert [len(one.rounds["cpu_us"]) for one in rows] == [2, 4]  # ours was started again
    assert all(one.memory["peak_mb"] > 0 for one in rows)
    assert not said


@pytest.mark.cluster
def test_a_peer_that_fails_is_left_out_with_its_last_words():
    said: list[str] = []
    case = Case("W2", 2, ("no such optimizer",), (LIMIT,), seconds=0.01)
    assert measure_case(case, (LIMIT,), rounds=1, say=said.append) == []
    (line,) = said
    assert "W2 no such optimizer, N=2: hand-written left out: KeyError" in line
