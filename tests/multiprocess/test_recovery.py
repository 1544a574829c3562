"""After accidents a launched training goes on from its checkpoint, to the same bits as without."""

import json
import random
import subprocess
import sys

import pytest

from tests.multiprocess.clusters import REPOSITORY, environment
from tests.multiprocess.recovery import NUM_STEPS
from tests.tiers import full_only

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

SECONDS = 240
RANDOM = random.Random(5)


def at_random(*accidents):
    """The accidents of the attempts, each at a random step."""
    return [
        [attempt, worker, RANDOM.randint(2, 9), name]
        for attempt, (worker, name) in enumerate(accidents, start=1)
    ]


ACCIDENTS = {
    "the chief and then the other killed": at_random((0, "SIGKILL"), (1, "SIGKILL")),
    "the other and then the chief stopped": at_random((1, "SIGSTOP"), (0, "SIGSTOP")),
    # Early, because all leave together, at a step that comes some time after the notice.
    "the chief and then the other told to leave": [[1, 0, 1, "SIGTERM"], [2, 1, 2, "SIGTERM"]],
    "the chief and then the other killed in a save": [
        [1, 0, "in a save", "SIGKILL"],
        [2, 1, "in a save", "SIGKILL"],
    ],
}

QUICK_CASE = "the chief and then the other killed"


def train(folder, faults):
    """What the run printed, and the bits of its state at the end."""
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from replicax.cli.main import main; main()"),
            *("launch", "--workers", "2", "--devices-per-worker", "1", "--show", "all"),
            *("--max-restarts", "2", "--backoff", "0"),
            *("-m", "tests.multiprocess.recovery", str(folder)),
        ],
        env=environment(1, FAULTS=json.dumps(faults)),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    found = [line.partition("bits ")[2] for line in text.splitlines() if "bits [" in line]
    assert len(found) == 1, text
    return text, found[0]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The bits of a run without accidents."""
    return train(tmp_path_factory.mktemp("undisturbed"), [])[1]


@pytest.mark.parametrize("case", [c if c == QUICK_CASE else full_only(c) for c in ACCIDENTS])
def test_a_run_with_accidents_ends_with_the_bits_of_one_without(case, undisturbed, tmp_path):
    text, bits = train(tmp_path, ACCIDENTS[case])
    assert bits == undisturbed
    assert text.count("accident at") == 2
    assert "3 attempts" in text
    for attempt, (_, worker, _, name) in enumerate(ACCIDENTS[case], start=1):
        if name == "SIGKILL":
            assert f"Attempt {attempt}: worker {worker}: killed by SIGKILL" in text
        elif name == "SIGSTOP":
            assert f"WorkerLostError: worker {worker} " in text
        else:  # nothing is done again
            steps = [line for line in text.splitlines() if line.startswith("[worker 0] step ")]
            assert [int(line.split()[-1]) for line in steps] == list(range(NUM_STEPS))
