"""The programs in ``examples/tutorials`` train, each in a process as a user starts it."""

import re

import pytest

from tests.backend.fresh_process import ROOT, run_fresh

FOLDER = ROOT / "examples" / "tutorials"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py") if "tensorflow" not in path.stem)


def losses(printed):
    return [float(loss) for loss in re.findall(r"^epoch \d+: loss (\S+)", printed, re.MULTILINE)]


@pytest.mark.slow  # seconds in a new process; the functions they use have quick tests
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_tutorial_runs_without_a_warning_and_its_loss_falls(name):
    path = FOLDER / f"{name}.py"
    printed = run_fresh(
        "import runpy, warnings; warnings.simplefilter('error')\n"
        f"runpy.run_path({str(path)!r}, run_name='__main__')",
    )
    found = losses(printed)
    assert len(found) >= 4
    assert found[3] < 0.5 * found[0]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_tutorial_has_a_twin_and_is_on_the_page(name):
    assert (FOLDER / f"{name}_tensorflow.py").exists()
    page = (ROOT / "docs" / "tutorials" / "twins.md").read_text(encoding="utf-8")
    assert f":diff: ../../examples/tutorials/{name}_tensorflow.py" in page
