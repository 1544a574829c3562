"""After accidents a launched training goes on from its checkpoint, to the same bits as without."""

import json
import os
import subprocess
import sys

import pytest

from tests.backend.fresh_process import SETUP_VARIABLES
from tests.multiprocess.clusters import REPOSITORY

pytestmark = pytest.mark.multiprocess

SECONDS = 240
ACCIDENTS = {
    "the chief and then the other killed": [[1, 0, 7, "SIGKILL"], [2, 1, 13, "SIGKILL"]],
    "the other and then the chief stopped": [[1, 1, 4, "SIGSTOP"], [2, 0, 11, "SIGSTOP"]],
    "the chief told to leave and the other killed": [[1, 0, 2, "SIGTERM"], [2, 1, 19, "SIGKILL"]],
    "the chief killed in a save, twice": [[1, 0, "in a save", "SIGKILL"]] * 2,
    "the other killed in a save": [[1, 1, "in a save", "SIGKILL"], [2, 1, 16, "SIGKILL"]],
}


def train(folder, faults):
    """What the run printed, and the bits of its state at the end."""
    inherited = {k: v for k, v in os.environ.items() if k not in (*SETUP_VARIABLES, "TF_CONFIG")}
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from replicax.cli.main import main; main()"),
            *("launch", "--workers", "2", "--devices-per-worker", "1", "--max-restarts", "4"),
            *("-m", "tests.multiprocess.recovery", str(folder)),
        ],
        env={**inherited, "FAULTS": json.dumps(faults), "PYTHONPATH": str(REPOSITORY)},
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


@pytest.mark.parametrize("case", ACCIDENTS)
def test_a_run_with_accidents_ends_with_the_bits_of_one_without(case, undisturbed, tmp_path):
    text, bits = train(tmp_path, ACCIDENTS[case])
    assert bits == undisturbed
    if "save" not in case:  # there it may have come a moment too late
        assert text.count("accident at") == 2
        assert "Attempt 2 ended" in text
