"""Lets a gradient see a variable as an argument.

While ``value_and_grad`` traces a loss, reads of the variables it differentiates
give the values that JAX differentiates with respect to.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any


class _Overrides(threading.local):
    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}


_overrides = _Overrides()


@contextlib.contextmanager
def overriding(variables: Sequence[Any], values: Sequence[Any]) -> Iterator[None]:
    """Makes reads of `variables` on this thread give `values`."""
    outer = _overrides.values
    keys = [id(variable) for variable in variables]
    _overrides.values = {**outer, **dict(zip(keys, values, strict=True))}
    try:
        yield
    finally:
        _overrides.values = outer


def override_of(variable: Any) -> Any:
    """The value that stands for `variable` here, or None."""
    return _overrides.values.get(id(variable)) if _overrides.values else None


def drop_override(variable: Any) -> None:
    """Ends the override of `variable`, because it was assigned."""
    _overrides.values.pop(id(variable), None)
