"""The names of Flax NNX that are not public and that the integration needs, all in one place.

An NNX variable keeps its value in the slot ``_raw_value``, and all of NNX reads and writes it
there: its own transformations go past ``get_value`` and ``set_value``. Whoever wants no update
lost must therefore be behind that slot. ``tests/integrations/flax/test_internals.py`` says what
of Flax this relies on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flax import nnx
from flax.nnx import spmd, tracers

TREE_METACLASS: Any = type(nnx.Pytree)
"""What makes modules, optimizers, metrics and streams of random numbers."""

_value: Any = vars(nnx.Variable)["_raw_value"]
_trace: Any = vars(nnx.Variable)["_trace_state"]


def replace_slots(
    get_value: Callable[[Any], Any],
    set_value: Callable[[Any, Any], None],
    get_trace_state: Callable[[Any], Any],
    set_trace_state: Callable[[Any, Any], None],
) -> None:
    """Makes properties of the slots in which NNX variables have their values and their traces."""
    nnx.Variable._raw_value = property(get_value, set_value)  # pyright: ignore
    nnx.Variable._trace_state = property(get_trace_state, set_trace_state)  # pyright: ignore


def stored(variable: Any) -> Any:
    """What is in the slot for the value."""
    return _value.__get__(variable)


def stored_or_none(variable: Any) -> Any:
    """The same; None while NNX is making the variable."""
    try:
        return _value.__get__(variable)
    except AttributeError:
        return None


def store(variable: Any, content: Any) -> None:
    """Puts `content` into the slot for the value."""
    _value.__set__(variable, content)


def trace_state(variable: Any) -> Any:
    """The trace in which NNX has made the variable."""
    return _trace.__get__(variable)


def set_trace_state(variable: Any, state: Any) -> None:
    """Notes the trace in which NNX has made the variable."""
    _trace.__set__(variable, state)


def here() -> Any:
    """The trace that this code is part of, as NNX notes it of each variable."""
    return tracers.TraceState()


def partition_spec(variable: Any) -> Any:
    """How NNX's own metadata says that a variable is cut, by its rules for names of axes, too."""
    return spmd.get_var_pspec(variable)
