"""What a package index shows of the package."""

import importlib.metadata
import re

from tests.architecture.source_tree import ROOT

LINK = re.compile(r"\]\((?!https?:)[^)]+\)")


def test_the_description_has_no_links_to_files_that_an_index_does_not_have():
    assert LINK.search((ROOT / "README.md").read_text(encoding="utf-8"))
    description = importlib.metadata.metadata("replicax").json["description"]
    assert description.startswith("# Replicax")
    assert LINK.findall(description) == []
