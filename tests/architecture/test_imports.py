"""Imports are absolute, at the top, from leaf modules, and private JAX is behind one file."""

import ast
from pathlib import Path

import pytest

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

COMPAT = [PACKAGE / "backend" / name for name in ("compat.py", "compat_processes.py")]
PRIVATE_PACKAGES = ("jax._src", "jaxlib")

# The layers above the public API; every other module would close a cycle by importing it.
ABOVE_THE_TOP = ("replicax.cli", "replicax.tf")


def _is_private_jax(name: str) -> bool:
    return any(is_within(name, package) for package in PRIVATE_PACKAGES)


@pytest.mark.parametrize(
    "path", [p for p in python_files(*CODE_FOLDERS) if p not in COMPAT], ids=display_name
)
def test_only_compat_imports_private_jax(path: Path):
    private = [
        f"line {statement.lineno}: {name}"
        for statement in imports(tree(path))
        for name in imported_names(statement)
        if _is_private_jax(name)
    ]
    assert not private, f"{display_name(path)}: {private}; put it into backend/compat.py"


@pytest.mark.parametrize("path", [p for p in src_files() if p not in COMPAT], ids=display_name)
def test_only_compat_reaches_private_jax_by_attribute(path: Path):
    private = [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in PRIVATE_PACKAGES
    ]
    assert not private, f"{display_name(path)}: {private}; put it into backend/compat.py"


@pytest.mark.parametrize("path", python_files(*CODE_FOLDERS), ids=display_name)
def test_imports_are_absolute(path: Path):
    relative = [
        f"line {statement.lineno}: {ast.unparse(statement)}"
        for statement in imports(tree(path))
        if isinstance(statement, ast.ImportFrom) and statement.level
    ]
    assert not relative, f"{display_name(path)}: {relative}"


@pytest.mark.parametrize("path", src_files(), ids=display_name)
def test_no_function_imports_a_module_of_the_package(path: Path):
    functions = [
        node
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    late = {
        f"line {statement.lineno}: {ast.unparse(statement)}"
        for function in functions
        for statement in imports(function)
        for name in imported_names(statement)
        if is_within(name, "replicax")
    }
    assert not late, f"{display_name(path)}: {sorted(late)}; a cycle hides here, move it up"


@pytest.mark.parametrize("path", src_files(), ids=display_name)
def test_internals_import_leaf_modules_and_not_the_public_api(path: Path):
    importer = module_name(path)
    if any(is_within(importer, layer) for layer in ABOVE_THE_TOP):
        return
    modules = module_names()
    through_facade = []
    for statement in imports(tree(path)):
        for name in imported_names(statement):
            # "from a import b" is a leaf import if a.b is a module.
            source = name if name in modules else name.rpartition(".")[0]
            allowed = is_facade(importer) and source != "replicax"  # a facade may list another
            if is_facade(source) and not allowed:
                through_facade.append(f"line {statement.lineno}: {ast.unparse(statement)}")
    assert not through_facade, f"{display_name(path)}: {through_facade}"
