"""Lets a gradient see a variable as an argument.

While ``value_and_grad`` traces a loss, reads of the variables it differentiates
give the values that JAX differentiates with respect to. JAX must not reuse in
another gradient what it traced with those values inside, so a gradient has a
token; it is a new one only where the last one may have been left in a trace.

An assignment ends the override. Eager replicas differentiate on threads of their own,
and what they call together assigns on another one: `noting_assignments` tells them.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.core import Tracer

from replicax.core.errors import TraceError
from replicax.engine.trace.frame import is_conditional
from replicax.jax_internals.traces import is_open, is_staging, trace_of, traces_inside

_gradient_token = jax.make_user_context(None)
_numbers = itertools.count(1)


class _Overrides(threading.local):
    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}
        self.number = next(_numbers)
        self.was_read_in_trace = False
        self.manager: Any = None
        self.assigned: list[Any] | None = None

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
    """The value that stands for `variable` here, or None.

    Raises:
        TraceError: JAX would not see that code here depends on it.
    """
    value = _overrides.values.get(id(variable)) if _overrides.values else None
    if value is None:
        return None
    if isinstance(value, Tracer) and not is_open(value):
        raise TraceError(
            f"variable {variable.name!r} is differentiated, and read inside jax.custom_jvp or "
            "jax.custom_vjp, where JAX differentiates with respect to the arguments only. Pass the "
            "value to the function as an argument."
        )
    if is_staging():
        _overrides.was_read_in_trace = True
    return value


@contextlib.contextmanager
def noting_assignments() -> Iterator[list[Any]]:
    """Lists the variables that are assigned on this thread in here."""
    outer, assigned = _overrides.assigned, []
    _overrides.assigned = assigned
    try:
        yield assigned
    finally:
        _overrides.assigned = outer


def drop_override(variable: Any) -> None:
    """Ends the override of `variable`, because it was assigned.

    Raises:
        TraceError: Whether it is assigned, or in which round of a loop, is not known yet.
    """
    if _overrides.assigned is not None:
        _overrides.assigned.append(variable)
    value = _overrides.values.get(id(variable)) if _overrides.values else None
    if value is None:
        return
    if isinstance(value, Tracer):
        inside, _ = traces_inside(trace_of(value))
        if any(map(is_conditional, inside)):
            raise TraceError(
                f"variable {variable.name!r} is differentiated, and assigned inside a loop or a "
                "branch: whether the value it is differentiated by is read after that is known "
                "only when the program runs. Return the new value, and assign it outside."
            )
    del _overrides.values[id(variable)]
    if _overrides.was_read_in_trace:
        _overrides.manager.__exit__(None, None, None)
        _overrides.enter(anew=True)
