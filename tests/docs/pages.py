"""The documentation pages and the fenced blocks in them.

A ``python`` block is run; an ``output`` block is what the ``python`` block before
it prints. Every other block is for reading. Reads files only.
"""

import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
"""Notebooks in text form: the build of the site runs them, so the tests do not."""
PAGES = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path not in TUTORIALS),
]

# What a block may be. TensorFlow code is never called python: it would be run.
LANGUAGES = frozenset({"python", "output", "tensorflow", "text", "sh"})

_FENCE = re.compile(r"```(?P<language>\w*)$")


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """One fenced block.

    Attributes:
        language: The word after the fence.
        line: The line of its first line of text, from 1.
        text: What is between the fences.
    """

    language: str
    line: int
    text: str


def page_name(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks_of(path: pathlib.Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    blocks = []
    opened: tuple[str, int] | None = None
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        if opened is None:
            opened = fence["language"], number + 1
        else:
            language, first = opened
            blocks.append(Block(language, first, "\n".join(lines[first - 1 : number - 1]) + "\n"))
            opened = None
    assert opened is None, f"{page_name(path)}: the block at line {opened} is not closed"
    return blocks
