"""Every file is small, documented, and a package's ``__init__`` holds a docstring only.

Each rule is one test, which lists every file that breaks it.
"""

import ast
from pathlib import Path

from tests.architecture.source_tree import (
    CODE_FOLDERS,
    ROOT,
    SRC,
    display_name,
    is_facade,
    module_name,
    python_files,
    src_files,
    tree,
)

MAX_LINES = 500


def _num_code_lines(path: Path) -> int:
    """The lines of a file that are in no docstring: to document more is no reason to split."""
    total = len(path.read_text(encoding="utf-8").splitlines())
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            docstring = node.body[0]
            total -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return total


def test_a_file_is_under_500_lines_without_docstrings():
    lengths = {display_name(path): _num_code_lines(path) for path in python_files(*CODE_FOLDERS)}
    long = {name: length for name, length in lengths.items() if length >= MAX_LINES}
    assert not long, "split these by concept"


def test_a_module_has_a_docstring():
    silent = [display_name(path) for path in src_files() if not ast.get_docstring(tree(path))]
    assert not silent, "say what these do and who calls them"


def test_a_sub_package_init_holds_a_docstring_only():
    inits = [path for path in src_files() if path.name == "__init__.py"]
    extra = {
        display_name(path): [ast.unparse(node) for node in tree(path).body[1:]]
        for path in inits
        if not is_facade(module_name(path)) and len(tree(path).body) > 1
    }
    assert not extra


def test_every_folder_of_modules_is_a_package():
    # A folder without __init__.py is left out of the wheel's import graph and of the layer check.
    folders = {parent for path in src_files() for parent in path.parents if SRC in parent.parents}
    missing = [folder for folder in folders if not (folder / "__init__.py").is_file()]
    assert not missing, [folder.relative_to(ROOT).as_posix() for folder in missing]
