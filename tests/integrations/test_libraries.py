"""The page of model libraries has the program of each row, and every program is short."""

import pathlib
import re

import pytest

from tests.integrations.libraries import LIBRARIES

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "your_model_library.md"


def program_of(library):
    sections = PAGE.read_text(encoding="utf-8").split("\n## ")
    (section,) = [text for text in sections if text.startswith(f"{library.title}\n")]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.module)
def test_the_page_has_a_program_of_at_most_25_lines(library):
    program = program_of(library)
    assert len([line for line in program.splitlines() if line.strip()]) <= 25
    assert library.module.split(".")[0] in program
    assert "strategy.run(" in program


def test_every_program_of_the_page_is_a_row():
    titles = re.findall(r"^## (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert titles == [library.title for library in LIBRARIES]
