"""The documented program with ``TF_CONFIG``, with both workers started, and a parameter server."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.multiprocess.clusters import REPOSITORY, Workers, require_success

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

EXAMPLE = "examples/multi_worker.py"
SECONDS = 180


@pytest.mark.slow
def test_both_workers_train_and_agree(tmp_path):
    with Workers([EXAMPLE], 2, 1, tmp_path) as workers:
        ended = workers.wait(SECONDS)
    require_success(ended)
    lines = [re.search(r"2 replicas, weights .*", worker.output) for worker in ended]
    assert all(lines)
    assert lines[0].group() == lines[1].group()
    assert "loss" in ended[0].output
    assert "loss" not in ended[1].output


def test_a_parameter_server_takes_its_branch_and_joins_nobody():
    config = {
        "cluster": {"worker": ["localhost:12345", "localhost:23456"], "ps": ["localhost:34567"]},
        "task": {"type": "ps", "index": 0},
    }
    done = subprocess.run(
        [sys.executable, EXAMPLE],
        env={**os.environ, "TF_CONFIG": json.dumps(config), "JAX_PLATFORMS": "cpu"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert "a parameter server takes no part" in done.stdout


def test_the_launcher_starts_both_workers():
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from replicax.cli.main import main; main()"),
            *("launch", "--workers", "2", "--devices-per-worker", "1", EXAMPLE),
        ],
        env={name: value for name, value in os.environ.items() if name != "TF_CONFIG"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 replicas, weights" in done.stdout
