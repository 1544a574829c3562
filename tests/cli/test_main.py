"""The ``replicax`` command: help, version, and what it says when something is missing."""

import importlib.metadata
import sys

import pytest
from click.testing import CliRunner, Result

from replicax.cli.main import SUBCOMMANDS, main


def _invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_lists_every_subcommand_with_one_line(option: str):
    result = _invoke(option)
    assert result.exit_code == 0
    assert result.output.startswith("Usage: ")
    lines = [line.strip().partition(" ") for line in result.output.splitlines()]
    for name, row in SUBCOMMANDS.items():
        assert (name, row.short_help) in [(first, rest.strip()) for first, _, rest in lines]


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_version_is_that_of_the_installed_package(option: str):
    result = _invoke(option)
    assert result.exit_code == 0
    assert result.output.split()[-1] == importlib.metadata.version("replicax")


def test_an_unknown_command_is_a_usage_error_that_names_it():
    result = _invoke("dmeo")
    assert result.exit_code == 2
    assert "No such command 'dmeo'. Did you mean 'demo'?" in result.output
    assert "No such command 'xyz'." in _invoke("xyz").output


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_loads_and_has_a_help(name: str):
    result = _invoke(name, "--help")
    assert result.exit_code == 0
    assert f"{name} [OPTIONS]" in result.output


@pytest.mark.parametrize(
    ("package", "module"), [("sklearn", "sklearn.datasets"), ("matplotlib", "matplotlib.figure")]
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    package: str, module: str, monkeypatch: pytest.MonkeyPatch
):
    # What import does for a package that is not there: it finds nothing on any path.
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("replicax.cli.demo", "replicax.cli.digits"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [_Absent(package), *sys.meta_path])
    result = _invoke("demo")
    assert result.exit_code == 1
    assert f"'replicax demo' needs the package {module.partition('.')[0]!r}" in result.output
    assert "pip install 'replicax[demo]'" in result.output


class _Absent:
    """A finder that makes one package look as if it were not installed."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == self._package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
