"""Type checkers see in small programs of users what is right and what is wrong.

`right.py` must have no error, `wrong.py` one on each line that says so, and on no other.
"""

import ast
import inspect
import json
import pathlib
import subprocess
import sys

import pytest

import replicax as rx
from replicax.variables import variable

FOLDER = pathlib.Path(__file__).parent
PROGRAMS = [FOLDER / "right.py", FOLDER / "wrong.py"]
EXPECTED = {
    (path.name, number)
    for path in PROGRAMS
    for number, line in enumerate(path.read_text().splitlines(), 1)
    if line.endswith("# wrong")
}


def printed_by(tmp_path, *command):
    """What a checker prints, run in an empty folder."""
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    ).stdout


@pytest.mark.quick
def test_pyright_finds_the_mistakes_and_nothing_else(tmp_path):
    settings = {"typeCheckingMode": "standard", "include": list(map(str, PROGRAMS))}
    project = tmp_path / "pyrightconfig.json"
    project.write_text(json.dumps(settings | {"reportUnusedExpression": "none"}))
    options = ["--outputjson", "--project", str(project), "--pythonpath", sys.executable]
    printed = printed_by(tmp_path, "basedpyright", *options)
    found = {
        (pathlib.Path(finding["file"]).name, finding["range"]["start"]["line"] + 1)
        for finding in json.loads(printed)["generalDiagnostics"]
        if finding["severity"] == "error"
    }
    assert found == EXPECTED, printed


@pytest.mark.slow
def test_mypy_finds_the_mistakes_and_nothing_else(tmp_path):
    options = ["--cache-dir", str(tmp_path), "--no-error-summary", "--follow-imports=silent"]
    printed = printed_by(tmp_path, "mypy", *options, *map(str, PROGRAMS))
    found = set()
    for line in printed.splitlines():
        path, number, kind, *_ = line.split(":")
        if kind.strip() == "error":
            found.add((pathlib.Path(path).name, int(number)))
    assert found == EXPECTED, printed


def test_a_variable_shows_its_signature():
    shown = inspect.signature(rx.Variable).parameters
    assert list(shown)[:3] == ["initial_value", "trainable", "name"]
    (declared,) = (
        node
        for node in ast.walk(ast.parse(inspect.getsource(variable)))
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    )
    arguments = [*declared.args.args[1:], *declared.args.kwonlyargs]
    assert [argument.arg for argument in arguments] == list(shown)
