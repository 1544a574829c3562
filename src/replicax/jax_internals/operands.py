"""Objects that functions of ``jax.lax`` take for their arrays.

``jax.numpy`` asks an object for its ``__jax_array__``. ``jax.lax`` does not, and has no public way
to be told; without these names it says so itself: "Triggering __jax_array__()".
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax


def _registries() -> tuple[Any, Any] | None:
    try:
        dtypes = importlib.import_module("jax._src.dtypes")
        core = importlib.import_module("jax._src.core")
        return dtypes.canonicalize_value_handlers, core.pytype_aval_mappings
    except (ImportError, AttributeError):
        return None


def accept(kind: type, value_of: Callable[[Any], jax.Array]) -> None:
    """Makes functions of ``jax.lax`` take an instance of `kind` as the array ``value_of(it)``.

    Args:
        kind: A class; not its subclasses, in some releases of JAX.
        value_of: The array that an instance stands for, now.
    """
    found = _registries()
    if found is not None:
        values, types = found
        values[kind] = value_of
        types[kind] = lambda item: jax.typeof(value_of(item))
