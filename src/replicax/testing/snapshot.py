"""Values of a program as NumPy arrays with names, to be compared or searched."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from replicax.core import nest
from replicax.core.enums import VariableAggregation, VariableSynchronization
from replicax.core.errors import ContextError
from replicax.engine.trace.frame import current_frame
from replicax.strategies.base import Strategy
from replicax.variables.registry import live_variables
from replicax.variables.variable import Variable


def require_values(call: str) -> None:
    """Raises inside a trace, where there are no values to look at.

    Raises:
        ContextError: Inside a ``function``.
    """
    if current_frame() is not None:
        raise ContextError(
            f"{call} was called inside a function that is being compiled, where values do not "
            "exist yet. Call it outside, after the step."
        )


def is_readable(variable: Variable) -> bool:
    """Whether the variable has one value in cross-replica context."""
    return not (
        variable.synchronization is VariableSynchronization.ON_READ
        and variable.aggregation is VariableAggregation.NONE
    )


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """The leaves of a nest with what to call them in a message."""
    return [(leaf_name(path, leaf), leaf) for path, leaf in nest.leaves_with_path(tree)]


def named_variables(strategy: Strategy) -> list[tuple[str, Variable]]:
    """The live variables of a strategy that can be read, with what to call them."""
    readable = [variable for variable in live_variables(strategy) if is_readable(variable)]
    names = [variable.name for variable in readable]
    return [
        (
            f"variable {name!r}"
            if names.count(name) == 1
            else f"variable {name!r}, number {names[:index].count(name) + 1} of that name",
            variable,
        )
        for index, (name, variable) in enumerate(zip(names, readable, strict=True))
    ]


def leaf_name(path: str, leaf: Any) -> str:
    """What to call one leaf of a nest."""
    kind = f"variable {leaf.name!r}" if isinstance(leaf, Variable) else "the value"
    return f"{kind} at {path}" if path else kind


def comparable(value: Any) -> np.ndarray:
    """`value` as a NumPy array of a type that NumPy computes with; small floats become larger."""
    array = np.asarray(value)
    if jnp.issubdtype(array.dtype, jnp.floating):
        return array.astype(np.float64)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        return array.astype(np.complex128)
    if array.dtype.kind in "biu":
        return array.astype(np.float64 if array.dtype.itemsize > 4 else np.int64)
    return array


def differences(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """How far apart the values are; NaN beside NaN is no difference, beside a number infinite."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(first - second).astype(np.float64)
    apart = np.where((first == second) | (np.isnan(first) & np.isnan(second)), 0.0, apart)
    return np.where(np.isnan(apart), np.inf, apart)
