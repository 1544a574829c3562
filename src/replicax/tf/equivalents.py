"""Says what to write instead of a name that a module of `replicax.tf` does not have."""

from __future__ import annotations

import fnmatch
import sys
import types

import jax
import jax.numpy as jnp
from jax import lax, nn
from jax.scipy import special

from replicax.tf.replacements import REPLACEMENTS as _REPLACEMENTS

__all__ = ["missing"]

# Where a function of the same name is looked for, the likeliest place first.
_PLACES: dict[str, tuple[types.ModuleType, ...]] = {
    "tf": (jnp, nn, lax, jax),
    "tf.math": (jnp, nn, special, lax),
    "tf.nn": (nn, lax, jnp),
}


def missing(namespace: str, name: str) -> AttributeError:
    """The error for a `name` that `namespace` does not have.

    Args:
        namespace: A module, such as ``tf`` or ``tf.keras.losses``.
        name: What was asked for.

    Returns:
        The error, which says what to write instead.

    Example:
        >>> missing("tf", "sin")
        AttributeError("replicax.tf has no 'sin'. Write jax.numpy.sin.")
    """
    said = f"replicax.{namespace} has no {name!r}."
    if name.startswith("_"):
        return AttributeError(said)
    instead = _instead(namespace, name)
    if instead is None:
        # With the module, Python suggests the nearest of its names.
        module = sys.modules.get(f"replicax.{namespace}")
        text = f"{said} JAX has no function of that name either." if namespace in _PLACES else said
        return AttributeError(text, name=name, obj=module)
    return AttributeError(
        f"{said} {instead}" if instead.endswith(".") else f"{said} Write {instead}."
    )


def _instead(namespace: str, name: str) -> str | None:
    """What the table says, or else the function of the same name in JAX."""
    # The operations are in several modules by the same name.
    modules = (namespace, *_PLACES) if namespace in _PLACES else (namespace,)
    for module in modules:
        if text := _REPLACEMENTS.get(f"{module}.{name}"):
            return text
    return _same_name(namespace, name) or _family(namespace, name)


def _same_name(namespace: str, name: str) -> str | None:
    # `vars`, because asking the module itself may warn about a deprecated name.
    for module in _PLACES.get(namespace, ()):
        if callable(vars(module).get(name)):
            return f"{module.__name__}.{name}"
    return None


def _family(namespace: str, name: str) -> str | None:
    for path, text in _REPLACEMENTS.items():
        module, _, pattern = path.rpartition(".")
        if fnmatch.fnmatchcase(namespace, module) and fnmatch.fnmatchcase(name, pattern):
            return text
    return None
