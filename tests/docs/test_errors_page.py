"""The page of errors has every class, and the texts to search for are those of the messages."""

import ast
import re

import pytest

from tests.architecture.source_tree import src_files, tree
from tests.core.test_errors import all_errors
from tests.docs.pages import ROOT

ROW = re.compile(r"^\| (?P<says>.+?) \| .+ \| .+ \|$", re.MULTILINE)
PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
NAMES = {cls.__name__ for cls in all_errors()}
ROWS = [
    row["says"] for row in ROW.finditer(PAGE) if re.match(r"`(\w+)`", row["says"])
    and re.match(r"`(\w+)`", row["says"])[1] in NAMES
]  # fmt: skip


def texts():
    """Every string of the source; what is put into it is ``...``."""
    for path in src_files():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.JoinedStr):
                parts = (
                    part.value if isinstance(part, ast.Constant) else "..." for part in node.values
                )
                yield "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


SOURCE = "\n".join(texts())


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_error_is_on_the_page(name):
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("says", ROWS, ids=lambda says: says[:60])
def test_the_text_to_search_for_is_in_a_message(says):
    for quoted in re.findall(r'"(.+?)"', says):
        for piece in quoted.split("..."):
            assert piece.strip() in SOURCE
