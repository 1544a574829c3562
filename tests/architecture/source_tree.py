"""The Python files of the repository and their syntax trees.

Reads files only, imports nothing of the package, so that a rule can be checked
on a package that does not import yet. The tests beside it are the callers.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
PACKAGE = SRC / "replicax"
CODE_FOLDERS = ("src", "tests", "benchmarks", "examples")

# Public modules that only give names; a package here may have more than a docstring.
FACADE_MODULES = ("experimental", "cluster_resolver", "data")
FACADE_PACKAGES = (
    *("coordinator", "costs", "integrations", "integrations.flax", "integrations.keras", "metrics"),
    "optimizers",
    *("saved_model", "summary", "testing", "tf"),
)

IMPORTS = ast.Import | ast.ImportFrom


def python_files(*folders: str) -> list[Path]:
    """Every Python file below those of the folders that exist."""
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in files if "__pycache__" not in path.parts]


def src_files() -> list[Path]:
    return python_files("src")


def display_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    """The dotted name of a file in src."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=display_name(path))


def imports(node: ast.AST) -> Iterator[IMPORTS]:
    """Every import statement in a tree, in functions too."""
    return (child for child in ast.walk(node) if isinstance(child, IMPORTS))


def imported_names(statement: IMPORTS) -> list[str]:
    """The dotted names that a statement may import: ``from a import b`` gives ``a.b``."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    return [f"{statement.module}.{alias.name}" for alias in statement.names]


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def module_names() -> frozenset[str]:
    return frozenset(module_name(path) for path in src_files())


def is_facade(name: str) -> bool:
    """Whether a module is a documented place of public names."""
    modules = {"replicax", *(f"replicax.{m}" for m in (*FACADE_MODULES, *FACADE_PACKAGES))}
    return name in modules or is_within(name, "replicax.tf")


def facades() -> list[str]:
    """The facade modules that exist, by dotted name."""
    return sorted(name for name in module_names() if is_facade(name))
