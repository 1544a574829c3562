"""The step that a summary belongs to where none is given."""

from __future__ import annotations

import contextvars
from typing import Any

from replicax.engine.protocols import variable_of
from replicax.variables.variable import Variable

_step: contextvars.ContextVar[Any] = contextvars.ContextVar("replicax_summary_step", default=None)


def set_step(step: Any) -> None:
    """Sets the step of the summaries of this thread that are given none.

    Args:
        step: An int; a variable, whose value at the time of each summary counts; or None.

    Example:
        >>> import replicax as rx
        >>> rx.summary.set_step(7)
        >>> rx.summary.get_step()
        7
        >>> rx.summary.set_step(None)
    """
    _step.set(step)


def get_step() -> Any:
    """What `set_step` has set on this thread.

    Returns:
        An int, a variable or None.

    Example:
        >>> import replicax as rx
        >>> rx.summary.get_step() is None
        True
    """
    return _step.get()


def step_variable() -> Variable | None:
    """The variable that has the step, if it is one: a program reads it where it is."""
    step = variable_of(_step.get())
    return step if isinstance(step, Variable) else None
