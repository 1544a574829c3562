"""Objects that functions of ``jax.lax`` take for their arrays.

``jax.numpy`` asks an object for its ``__jax_array__``. ``jax.lax`` does not, and has no public way
to be told; without these names it says so itself: "Triggering __jax_array__()".
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax

_accepted: dict[type, Callable[[Any], jax.Array]] = {}


def accept(kind: type, value_of: Callable[[Any], jax.Array]) -> None:
    """Makes functions of ``jax.lax`` take an instance of `kind` as the array ``value_of(it)``.

    Args:
        kind: A class; not its subclasses, in some releases of JAX.
        value_of: The array that an instance stands for, now.
    """
    try:
        core = importlib.import_module("jax._src.core")
        values = importlib.import_module("jax._src.dtypes").canonicalize_value_handlers
        types = core.pytype_aval_mappings
    except (ImportError, AttributeError):
        return
    values[kind] = value_of
    types[kind] = lambda item: jax.typeof(value_of(item))
    if not _accepted and hasattr(core, "canonicalize_value_dtype"):
        _convert_operands_early(core)
    _accepted[kind] = value_of


def _convert_operands_early(core: Any) -> None:
    """For JAX 0.10.0, which converts what the handlers are for too late to differentiate it."""
    original = core.canonicalize_value_dtype

    def canonicalize(value: Any) -> Any:
        value_of = _accepted.get(type(value))
        return original(value) if value_of is None else value_of(value)

    core.canonicalize_value_dtype = canonicalize
