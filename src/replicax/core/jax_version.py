"""Refuses a version of JAX with which Replicax was not tested, when Replicax is imported.

`jax_internals` uses private names of JAX, and `engine` reads traced programs, whose form JAX does
not promise. Both change between versions: with an older one the first import would end in an
AttributeError that says nothing of the reason. The package imports this module before all others.
"""

from __future__ import annotations

import jax

LOWEST = (0, 10, 0)
TOO_NEW = (0, 11)


def check(version: tuple[int, ...]) -> None:
    """Raises unless this version of JAX can be used.

    Raises:
        ImportError: Names the version and says what to install.

    Example:
        >>> check((0, 10, 1))
    """
    if not LOWEST <= version < TOO_NEW:
        wanted = f"jax>={_text(LOWEST)},<{_text(TOO_NEW)}"
        raise ImportError(
            f"this version of Replicax needs {wanted}; JAX {_text(version)} is installed. "
            f"Install another one with: pip install '{wanted}'"
        )


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


check(jax.__version_info__)
