"""The site has every page, in the order of the list in ``docs/index.md``."""

import re

from tests.docs.pages import ROOT
from website.contents import tables_of_contents

DOCS = ROOT / "docs"


def test_every_page_is_in_the_table_of_contents_once():
    tables = tables_of_contents((DOCS / "index.md").read_text(encoding="utf-8"))
    listed = re.findall(r"^([\w/]+)$", tables, re.MULTILINE)
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    assert sorted(listed) == sorted(pages - {"index"})


def test_a_section_without_pages_has_no_table():
    index = "# A\n\n## First\n\n- [B](b.md): what it is.\n\n## Second\n\ntext, [B](b.md)\n"
    assert tables_of_contents(index).split() == [
        ":::{toctree}", ":hidden:", ":caption:", "First", "b", ":::",
    ]  # fmt: skip
