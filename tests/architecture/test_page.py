"""The table of packages in docs/architecture.md is what there is, and what is enforced."""

import re
import tomllib

from tests.architecture.source_tree import PACKAGE, ROOT

PAGE = ROOT / "docs" / "architecture.md"


def rows_of_the_page():
    """The names in each row of the table, from the top; a row may take several lines."""
    block = re.search(r"```text\n(cli \| tf .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    rows = []
    for line in block[1].splitlines():
        names = re.split(r" {2,}", line.strip())[0]
        more = set(re.findall(r"\w+", names))
        if line.startswith(" "):
            rows[-1] |= more
        else:
            rows.append(more)
    return rows


def rows_of_the_contract():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = project["tool"]["importlinter"]["contracts"][0]
    return [set(re.findall(r"\w+", layer)) for layer in contract["layers"]]


def modules():
    paths = [path for path in PACKAGE.iterdir() if not path.name.startswith(("_", "."))]
    return {path.stem for path in paths if path.suffix == ".py" or (path / "__init__.py").exists()}


def test_the_page_lists_what_there_is():
    assert set().union(*rows_of_the_page()) == modules()


def test_the_rows_of_the_page_are_the_layers_that_are_enforced():
    there = modules()
    layers = [layer & there for layer in rows_of_the_contract()]
    assert rows_of_the_page() == [layer for layer in layers if layer]
