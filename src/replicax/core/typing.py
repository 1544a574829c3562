"""Names for types that JAX offers in a form type checkers cannot use."""

from typing import Any, TypeAlias

Device: TypeAlias = Any
"""A ``jax.Device``."""
