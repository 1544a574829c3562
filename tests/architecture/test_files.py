"""Every file is small, documented, and a package's ``__init__`` holds a docstring only."""

import ast
from pathlib import Path

import pytest

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
INIT_FILES = [path for path in src_files() if path.name == "__init__.py"]


@pytest.mark.parametrize("path", python_files(*CODE_FOLDERS), ids=display_name)
def test_a_file_is_under_500_lines(path: Path):
    num_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert num_lines < MAX_LINES, f"{display_name(path)} has {num_lines} lines: split it by concept"


@pytest.mark.parametrize("path", src_files(), ids=display_name)
def test_a_module_has_a_docstring(path: Path):
    docstring = ast.get_docstring(tree(path))
    assert docstring, f"{display_name(path)} has no docstring: say what it does and who calls it"


@pytest.mark.parametrize(
    "path", [path for path in INIT_FILES if not is_facade(module_name(path))], ids=display_name
)
def test_a_sub_package_init_holds_a_docstring_only(path: Path):
    extra = [ast.unparse(node) for node in tree(path).body[1:]]
    assert not extra, f"{display_name(path)} also has: {extra}"


def test_every_folder_of_modules_is_a_package():
    # A folder without __init__.py is left out of the wheel's import graph and of the layer check.
    folders = {parent for path in src_files() for parent in path.parents if SRC in parent.parents}
    missing = [folder for folder in folders if not (folder / "__init__.py").is_file()]
    assert not missing, [folder.relative_to(ROOT).as_posix() for folder in missing]
