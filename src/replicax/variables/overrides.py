"""Lets a gradient see a variable as an argument.

While ``value_and_grad`` traces a loss, reads of the variables it differentiates
give the values that JAX differentiates with respect to. JAX must not reuse in
another gradient what it traced with those values inside, so a gradient has a
token; it is a new one only where the last one may have been left in a trace.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from replicax.backend import compat

_gradient_token = jax.make_user_context(None)
_numbers = itertools.count(1)


class _Overrides(threading.local):
    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}
        self.number = next(_numbers)
        self.was_read_in_trace = False
        self.manager: Any = None

    def enter(self, *, anew: bool) -> None:
        if anew or self.was_read_in_trace:
            self.number = next(_numbers)
            self.was_read_in_trace = False
        self.manager = _gradient_token(self.number)
        self.manager.__enter__()


_overrides = _Overrides()


@contextlib.contextmanager
def overriding(variables: Sequence[Any], values: Sequence[Any]) -> Iterator[None]:
    """Makes reads of `variables` on this thread give `values`."""
    outer, outer_manager = _overrides.values, _overrides.manager
    keys = [id(variable) for variable in variables]
    _overrides.values = {**outer, **dict(zip(keys, values, strict=True))}
    _overrides.enter(anew=outer_manager is not None)
    try:
        yield
    finally:
        _overrides.manager.__exit__(None, None, None)
        _overrides.values, _overrides.manager = outer, outer_manager


def override_of(variable: Any) -> Any:
    """The value that stands for `variable` here, or None."""
    value = _overrides.values.get(id(variable)) if _overrides.values else None
    if value is not None and compat.is_staging():
        _overrides.was_read_in_trace = True
    return value


def drop_override(variable: Any) -> None:
    """Ends the override of `variable`, because it was assigned."""
    if _overrides.values.pop(id(variable), None) is not None and _overrides.was_read_in_trace:
        _overrides.manager.__exit__(None, None, None)
        _overrides.enter(anew=True)
