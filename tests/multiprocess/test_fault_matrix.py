"""After every accident a launched training goes on, to the bits of an undisturbed one."""

import pytest

from tests.multiprocess import fault_matrix
from tests.multiprocess.fault_matrix import CASES, IMPOSSIBLE, LIMIT_SECONDS, VICTIMS, Case
from tests.multiprocess.recovery import NUM_STEPS
from tests.tiers import full_only

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

QUICK_CASES = [Case("kill -9", "chief", 2), Case("kill -9", "launcher", 2)]

# What the launcher or the other workers say of it, by fault and victim, and by fault only.
NAMED = {
    ("kill -9", "service"): "the coordination service at 127.0.0.1:",
    ("stop", "service"): "does not answer for 7 s",
    "kill -9": "worker {rank}: killed by SIGKILL",
    "kill -9 in a save": "worker {rank}: killed by SIGKILL",
    "stop": "WorkerLostError: worker {rank} ",
    "exit": "(its program ended)",
    "raise": "worker {rank}: exit code 1",
    "TERM": "worker {rank}",
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """``undisturbed(num_workers)``: the bits of a run without accidents."""
    bits = {}

    def bits_of(num_workers):
        if num_workers not in bits:
            folder = tmp_path_factory.mktemp("undisturbed")
            bits[num_workers] = fault_matrix.train(folder, num_workers)
        return bits[num_workers]

    return bits_of


@pytest.mark.parametrize(
    "case", [case if case in QUICK_CASES else full_only(case) for case in CASES], ids=str
)
def test_an_accident_is_noticed_in_time_and_loses_nothing(case, undisturbed, tmp_path):
    result = fault_matrix.run(case, tmp_path)
    assert result.bits == undisturbed(case.num_workers), result.text
    assert result.seconds is None or result.seconds < LIMIT_SECONDS, result.text
    if case.victim != "launcher" and not case.goes_on:
        rank = 0 if case.victim == "chief" else case.num_workers - 1
        named = NAMED.get((case.fault, case.victim), NAMED[case.fault])
        assert named.format(rank=rank) in result.text
    if case.fault == "TERM" and case.victim in ("worker", "chief"):  # nothing is done again
        steps = [line for line in result.text.splitlines() if line.startswith("[worker 0] step ")]
        assert [int(line.split()[-1]) for line in steps] == list(range(NUM_STEPS))


def test_the_documentation_has_every_case():
    page = fault_matrix.PAGE.read_text()
    rows = page.partition(fault_matrix.BEGIN)[2].partition(fault_matrix.END)[0].splitlines()[2:]
    cells = {
        (fault.strip(), victim): text.strip()
        for fault, *texts in (row.strip("|").split("|") for row in rows)
        for victim, text in zip(VICTIMS, texts, strict=True)
    }
    assert cells.keys() == {(c.fault, c.victim) for c in CASES} | IMPOSSIBLE.keys()
    for (fault, victim), text in cells.items():
        if (fault, victim) in IMPOSSIBLE:
            assert text == f"({IMPOSSIBLE[fault, victim]})"
        elif (fault, victim) in fault_matrix.UNDISTURBED:
            assert text == fault_matrix.GOES_ON
        else:
            assert all(float(seconds) < LIMIT_SECONDS for seconds in text.split("/"))
