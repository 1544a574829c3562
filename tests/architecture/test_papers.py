"""What stands in the files beside the code, for those who cite, report or contribute, is true."""

import re

import replicax as rx
from tests.architecture.source_tree import ROOT


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_citation_has_the_version_and_the_authors_of_the_package():
    citation = read("CITATION.cff")
    assert f"\nversion: {rx.__version__}\n" in citation
    assert re.findall(r"name: (The .+)", citation) == re.findall(
        r'authors = \[\{ name = "(.+?)" }]', read("pyproject.toml")
    )


def test_the_workflow_runs_make_commands_that_exist():
    commands = re.findall(r"^      - run: (.+)$", read(".github/workflows/ci.yml"), re.MULTILINE)
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    assert len(commands) >= 4
    for command in commands:
        assert re.fullmatch(r"make ([a-z-]+) PYTHON=python", command)
        assert command.split()[1] in targets


def test_commits_are_checked_by_the_ruff_of_the_environment():
    entries = re.findall(r"entry: (\S+)", read(".pre-commit-config.yaml"))
    assert entries == [".venv/bin/ruff"] * 2
