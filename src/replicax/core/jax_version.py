"""Refuses a version of JAX that is too old, when Replicax is imported.

`jax_internals` uses private names of JAX, which move between versions. With an older one the first
import would end in an AttributeError that says nothing of the reason. The package imports this
module before all others. A newer one is not refused: if it lacks a name that Replicax cannot do
without, the error names it.
"""

from __future__ import annotations

import jax

LOWEST = (0, 10, 0)


def check(version: tuple[int, ...]) -> None:
    """Raises unless this version of JAX can be used.

    Raises:
        ImportError: Names the version and says what to install.

    Example:
        >>> check((0, 10, 1))
    """
    if version < LOWEST:
        wanted = f"jax>={_text(LOWEST)}"
        raise ImportError(
            f"this version of Replicax needs {wanted}; JAX {_text(version)} is installed. "
            f"Install another one with: pip install '{wanted}'"
        )


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


check(jax.__version_info__)
