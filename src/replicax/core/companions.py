"""Connects Replicax with a library once a program uses both.

A program that enters a strategy's scope or makes a dataset uses Replicax; one that has imported
a library of the table uses that. Only then is the integration imported, whichever came first.
Nothing here knows what an integration does, and importing Replicax changes nothing. `strategies`
and `input` call `connect`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

INTEGRATIONS = {
    "equinox": "replicax.integrations.batch_norms.equinox",
    "flax.linen": "replicax.integrations.batch_norms.linen",
    "flax.nnx": "replicax.integrations.flax",
    "haiku": "replicax.integrations.batch_norms.haiku",
    "keras": "replicax.integrations.keras",
}
"""The integration to import, by the library that it is for."""

_waiting: dict[str, str] = dict(INTEGRATIONS)


def connect() -> None:
    """Imports the integrations of all libraries that are in use, and waits for the others."""
    if not _waiting:
        return
    for library in [name for name in _waiting if name in sys.modules]:
        if not _is_being_imported(sys.modules[library]):
            importlib.import_module(_waiting.pop(library))
    if _waiting and _watch not in sys.meta_path:
        sys.meta_path.insert(0, _watch)


def _is_being_imported(module: types.ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))


class _Watch(importlib.abc.MetaPathFinder):
    """Sees the import of a library that comes after the first scope."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a library that is waited for, with a loader that connects it."""
        if fullname not in _waiting:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Executes the library as `inner` does, then imports the integration."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        """What the library's own loader makes."""
        return self._inner.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        """Executes the library; from then on it has its own loader again."""
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        integration = _waiting.pop(module.__name__, None)
        if integration is not None:
            importlib.import_module(integration)


_watch = _Watch()
