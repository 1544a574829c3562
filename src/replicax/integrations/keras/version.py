"""Refuses a Keras that is too old, before anything else of this package is imported."""

from __future__ import annotations

LOWEST = (3, 12)


def require(version: str) -> None:
    """Checks the version of Keras.

    Args:
        version: As in ``keras.__version__``.

    Raises:
        ImportError: If it is too old.

    Example:
        >>> require("3.15.1")
    """
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < LOWEST:
        raise ImportError(
            f"Keras {version} is too old for a Replicax strategy, which needs Keras 3.12 or newer. "
            "Install it with pip install --upgrade 'replicax[keras]'."
        )
