"""Every file is documented, and a package's ``__init__`` holds a docstring only.

Each rule is one test, which lists every file that breaks it.
"""

import ast

from tests.architecture.source_tree import (
    ROOT,
    SRC,
    display_name,
    is_facade,
    module_name,
    src_files,
    tree,
)


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
