"""Docstrings of public functions and methods say what they take and what they give back."""

import inspect
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from tests.architecture.public_api import bases, public_classes, public_functions

NOTHING = (None, "None", NoReturn, "NoReturn", inspect.Signature.empty)


def _callables() -> Iterator[tuple[str, Any]]:
    """Every public function and method with its name; properties are neither."""
    for function in public_functions():
        yield f"{function.__module__}.{function.__name__}", inspect.unwrap(function)
    for cls in dict.fromkeys(base for public in public_classes() for base in bases(public)):
        for name, value in vars(cls).items():
            method = inspect.unwrap(getattr(value, "__func__", value))
            if not name.startswith("_") and inspect.isfunction(method):
                yield f"{cls.__name__}.{name}", method


def _section(docstring: str, name: str) -> str:
    found = re.search(rf"^{name}:\n((?:    .*\n|\n)+)", f"{docstring}\n", re.MULTILINE)
    return found[1] if found else ""


def _missing(function: Any) -> list[str]:
    docstring = inspect.getdoc(function) or ""
    signature = inspect.signature(function)
    parameters = [name for name in signature.parameters if name not in ("self", "cls")]
    described = re.findall(r"^    \*{0,2}(\w+):", _section(docstring, "Args"), re.MULTILINE)
    missing = [f"Args: {name}" for name in parameters if name not in described]
    missing += [
        f"Args: {name}, which it does not take" for name in described if name not in parameters
    ]
    # Of a method without arguments, a single line already says what it gives.
    says_all = not parameters and "\n" not in docstring
    if signature.return_annotation not in NOTHING and not says_all:
        missing += [] if _section(docstring, "Returns") else ["Returns"]
    return missing


def test_public_functions_and_methods_describe_arguments_and_results():
    lacking = {name: missing for name, each in _callables() if (missing := _missing(each))}
    assert not lacking
