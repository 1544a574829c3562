"""A tutorial and its TensorFlow twin have the same loss after each epoch."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.docs.pages import ROOT

FOLDER = ROOT / "examples" / "tutorials"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py") if "tensorflow" not in path.stem)


def losses_of(program):
    environment = dict(os.environ)
    del environment["KERAS_BACKEND"]  # of the tests; the twin's Keras is TensorFlow's
    finished = subprocess.run(
        [sys.executable, str(FOLDER / f"{program}.py")],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    found = re.findall(r"^epoch \d+: loss (\S+)", finished.stdout, re.MULTILINE)
    return [float(loss) for loss in found]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_tutorial_trains_as_its_twin_does(name):
    own, twin = losses_of(name), losses_of(f"{name}_tensorflow")
    assert len(own) >= 4
    np.testing.assert_allclose(own, twin, atol=1e-3)
