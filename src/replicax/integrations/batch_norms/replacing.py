"""Replaces a method of a library for code that runs in a replica."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from replicax.engine.contexts import stack


def replace_in_replicas(owner: type, name: str, replacement: Callable[..., Any]) -> None:
    """Replaces a method of `owner`, where a replica calls it.

    Args:
        owner: The class.
        name: The name of the method.
        replacement: Called with the original method and its arguments.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        entry = stack.top()
        if entry is None or entry.mode is not stack.Mode.REPLICA:
            return original(*args, **kwargs)
        return replacement(original, *args, **kwargs)

    setattr(owner, name, replaced)
