"""Imports are absolute, at the top, from leaf modules, and private JAX is in one room.

Each rule is one test, which lists every line that breaks it.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source_tree import (
    CODE_FOLDERS,
    PACKAGE,
    display_name,
    imported_names,
    imports,
    is_facade,
    is_within,
    module_name,
    module_names,
    python_files,
    src_files,
    tree,
)

PRIVATE_ROOM = PACKAGE / "jax_internals"
PRIVATE_PACKAGES = ("jax._src", "jaxlib")

# The layers above the public API; every other module would close a cycle by importing it.
ABOVE_THE_TOP = ("replicax.cli", "replicax.estimator", "replicax.tf")


def _line(path: Path, node: ast.stmt | ast.expr) -> str:
    return f"{display_name(path)}:{node.lineno}: {ast.unparse(node)}"


def _import_lines(paths: list[Path]) -> Iterator[tuple[Path, ast.Import | ast.ImportFrom, str]]:
    """Every import of these files, with each name that it may import."""
    for path in paths:
        for statement in imports(tree(path)):
            for name in imported_names(statement):
                yield path, statement, name


def _is_private_jax(name: str) -> bool:
    return any(is_within(name, package) for package in PRIVATE_PACKAGES)


def test_only_one_room_imports_private_jax():
    others = [path for path in python_files(*CODE_FOLDERS) if PRIVATE_ROOM not in path.parents]
    private = [_line(p, s) for p, s, name in _import_lines(others) if _is_private_jax(name)]
    assert not private, "put these into jax_internals"


def test_only_one_room_reaches_private_jax_by_attribute():
    private = [
        _line(path, node)
        for path in src_files()
        if PRIVATE_ROOM not in path.parents
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in PRIVATE_PACKAGES
    ]
    assert not private, "put these into jax_internals"


def test_imports_are_absolute():
    relative = [
        _line(path, statement)
        for path in python_files(*CODE_FOLDERS)
        for statement in imports(tree(path))
        if isinstance(statement, ast.ImportFrom) and statement.level
    ]
    assert not relative


def test_no_function_imports_a_module_of_the_package():
    late = {
        _line(path, statement)
        for path in src_files()
        for function in ast.walk(tree(path))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in imports(function)
        for name in imported_names(statement)
        if is_within(name, "replicax")
    }
    assert not late, "a cycle hides here: move these up"


def test_internals_import_leaf_modules_and_not_the_public_api():
    modules = module_names()

    def is_through_facade(importer: str, name: str) -> bool:
        # "from a import b" is a leaf import if a.b is a module.
        source = name if name in modules else name.rpartition(".")[0]
        allowed = is_facade(importer) and source != "replicax"  # a facade may list another
        return is_facade(source) and not allowed

    internals = [
        path
        for path in src_files()
        if not any(is_within(module_name(path), layer) for layer in ABOVE_THE_TOP)
    ]
    through_facade = [
        _line(path, statement)
        for path, statement, name in _import_lines(internals)
        if is_through_facade(module_name(path), name)
    ]
    assert not through_facade
