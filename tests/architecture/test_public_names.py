"""``__all__`` of the package and of every facade is its public namespace, sorted."""

import __future__

import importlib
import types

from tests.architecture.source_tree import facades


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _public_names(module: types.ModuleType) -> set[str]:
    """Names without underscore that are not modules, ``from __future__`` left out."""
    for name in module.__all__:
        getattr(module, name, None)  # some are imported when they are first asked for
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, types.ModuleType | __future__._Feature)
    }


def _facades_in(module: types.ModuleType) -> set[str]:
    """The modules that ``__all__`` gives on purpose: they must be facades themselves."""
    return {
        name
        for name in module.__all__
        if isinstance(value := getattr(module, name, None), types.ModuleType)
        and value.__name__.startswith("replicax.")
    }


def test_the_package_itself_is_among_the_facades():
    assert "replicax" in facades()


def _modules() -> list[types.ModuleType]:
    return [importlib.import_module(name) for name in facades()]


def test_all_is_the_public_namespace():
    differences = {}
    for module in _modules():
        declared = {entry for entry in module.__all__ if not _is_dunder(entry)}
        public = _public_names(module) | _facades_in(module)
        if declared != public:
            missing, unknown = sorted(public - declared), sorted(declared - public)
            differences[module.__name__] = f"not in __all__: {missing}; only there: {unknown}"
    assert not differences


def test_all_is_sorted_without_duplicates():
    unsorted = [m.__name__ for m in _modules() if list(m.__all__) != sorted(set(m.__all__))]
    assert not unsorted


def test_every_name_in_all_exists():
    missing = [
        f"{module.__name__}.{entry}"
        for module in _modules()
        for entry in module.__all__
        if not hasattr(module, entry)
    ]
    assert not missing


def test_every_public_class_and_function_is_documented():
    silent = [
        f"{module.__name__}.{entry}"
        for module in _modules()
        for entry in module.__all__
        if isinstance(value := getattr(module, entry), type | types.FunctionType)
        and not (value.__doc__ or "").strip()
    ]
    assert not silent
