"""What ``import replicax`` loads beyond ``import jax``: time would depend on the machine."""

import json
import subprocess
import sys

MAX_OWN, MAX_FOREIGN = 150, 8
"""Modules: each of ours takes a bit less than a millisecond, and an import may take 0.15 s."""

PROBE = """
import json, sys
import jax, jax.numpy, numpy
before = set(sys.modules)
import replicax
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_importing_the_package_loads_few_modules_beyond_jax():
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=120, check=True
    )
    names = json.loads(done.stdout)
    own = [name for name in names if name.partition(".")[0] == "replicax"]
    foreign = sorted(set(names) - set(own))
    assert 0 < len(own) <= MAX_OWN, len(own)
    assert len(foreign) <= MAX_FOREIGN, foreign


def test_what_few_programs_use_is_imported_when_it_is_used():
    probe = "import replicax as rx, sys; print(*sys.modules); rx.Checkpoint, rx.metrics, rx.testing"
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, check=True
    )
    names = set(done.stdout.split())
    late = ("checkpoint", "metrics", "testing", "cluster", "input.pipeline")
    prefixes = tuple(f"replicax.{name}" for name in late)
    assert [name for name in names if name.startswith(prefixes)] == []
