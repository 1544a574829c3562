"""What ``import replicax`` loads beyond ``import jax``: time would depend on the machine."""

import json
import subprocess
import sys

MAX_OWN, MAX_FOREIGN = 240, 45
"""Modules: each of ours takes about half a millisecond, and 0.15 s is what an import may take."""

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
