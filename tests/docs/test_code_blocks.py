"""Every ``python`` block of the README and of docs runs, and prints what the page says."""

import ast
import itertools
import pathlib
import re

import pytest

from tests.backend.fresh_process import run_fresh
from tests.docs.pages import LANGUAGES, PAGES, ROOT, TUTORIALS, blocks_of, page_name

LINK = re.compile(r"\[[^\]]+\]\((?P<target>[^)#]+)(?:#[^)]*)?\)")
README_EXAMPLE_LINES = 20

# What in a block needs an extra of the package.
EXTRA_USES = {
    "data": r"\bDataset\b|\bgrain\b",
    "checkpoint": r"\bCheckpoint\w*\(|\bBackupAndRestore\b|\borbax\b",
    "tensorboard": r"\bcreate_file_writer\b",
    "demo": r"\bsklearn\b|\bmatplotlib\b",
}


def test_the_blocks_of_the_readme_run_and_print_what_it_says():
    run_page(ROOT / "README.md")


@pytest.mark.parametrize("path", [p for p in PAGES if p.name != "README.md"], ids=page_name)
def test_the_blocks_of_a_page_run_and_print_what_it_says(path: pathlib.Path):
    run_page(path)


def run_page(path: pathlib.Path):
    source = f"import runpy, sys; sys.argv[1:] = [{str(path)!r}]\n"
    run_fresh(source + "runpy.run_module('tests.docs.run_page', run_name='__main__')", timeout=300)


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_a_page_begins_with_the_devices_that_it_needs(path: pathlib.Path):
    blocks = [block for block in blocks_of(path) if block.language == "python"]
    if not blocks:
        return
    statements = ast.parse(blocks[0].text).body
    first = next(s for s in statements if not isinstance(s, ast.Import | ast.ImportFrom))
    assert ast.unparse(first).startswith("rx.set_virtual_devices(")


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_a_page_names_the_extras_that_its_blocks_need(path: pathlib.Path):
    code = "".join(block.text for block in blocks_of(path) if block.language == "python")
    text = path.read_text(encoding="utf-8")
    missing = {
        extra
        for extra, uses in EXTRA_USES.items()
        if re.search(uses, code) and not re.search(rf"replicax\[[\w,]*{extra}", text)
    }
    assert not missing, f"{page_name(path)} needs {missing}; say pip install 'replicax[...]'"


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_every_block_says_what_it_is(path: pathlib.Path):
    unknown = [(b.line, b.language) for b in blocks_of(path) if b.language not in LANGUAGES]
    assert not unknown, f"{page_name(path)}: {unknown}; use one of {sorted(LANGUAGES)}"


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_every_output_follows_the_block_that_prints_it(path: pathlib.Path):
    languages = ["", *(block.language for block in blocks_of(path))]
    for before, language in itertools.pairwise(languages):
        assert language != "output" or before == "python"


@pytest.mark.parametrize("path", [*PAGES, *TUTORIALS], ids=page_name)
def test_every_link_leads_to_a_file(path: pathlib.Path):
    targets = [match["target"] for match in LINK.finditer(path.read_text(encoding="utf-8"))]
    missing = [target for target in targets if not (path.parent / target).exists()]
    assert not missing, f"{page_name(path)}: {missing}"


def test_the_example_of_the_readme_is_short_and_shows_its_result():
    example, output, *_ = blocks_of(ROOT / "README.md")
    assert (example.language, output.language) == ("python", "output")
    assert len([line for line in example.text.splitlines() if line]) <= README_EXAMPLE_LINES
