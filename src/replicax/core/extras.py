"""Optional dependencies: what to say when one that is needed is not installed."""

from __future__ import annotations

import importlib.util


def require_extra(module: str, *, user: str, extra: str) -> None:
    """Checks that `module` can be imported, without importing it.

    Args:
        module: The library.
        user: What needs it.
        extra: The extra of this package that installs it.

    Raises:
        ImportError: If it is not installed; says how to get it.

    Example:
        >>> require_extra("numpy", user="this example", extra="data")
    """
    if importlib.util.find_spec(module) is None:
        raise ImportError(
            f"{user} needs {module}, which is not installed. Install it with "
            f"pip install 'replicax[{extra}]'."
        )
