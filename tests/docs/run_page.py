"""Runs the ``python`` blocks of one page in order, in one namespace.

Started by `test_code_blocks` in a process of its own, with one device, as a page's reader would
be on a laptop: ``python -m tests.docs.run_page <page>``. The page asks for the devices itself.
"""

import contextlib
import io
import itertools
import pathlib
import sys
import types
import warnings

from tests.docs.pages import Block, blocks_of, page_name


def run_page(path: pathlib.Path) -> None:
    """Runs every block and compares what it prints with the output block after it."""
    page = types.ModuleType("__main__")
    blocks = blocks_of(path)
    for block, following in itertools.zip_longest(blocks, blocks[1:]):
        if block.language != "python":
            continue
        printed = _run(block, page, f"{page_name(path)}, block at line {block.line}")
        expected = following.text if following and following.language == "output" else ""
        if printed != expected:
            raise SystemExit(
                f"{page_name(path)}: the block at line {block.line} prints\n{printed}\n"
                f"and not\n{expected}"
            )


def _run(block: Block, page: types.ModuleType, name: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.text, f"<{name}>", "exec"), page.__dict__)
    return printed.getvalue()


if __name__ == "__main__":
    warnings.simplefilter("error")
    run_page(pathlib.Path(sys.argv[1]))
