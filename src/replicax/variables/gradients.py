"""Gradients with respect to variables that a loss function reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.core import nest
from replicax.core.errors import VariableError
from replicax.engine.protocols import variable_of
from replicax.engine.trace.overrides import overriding
from replicax.variables.rows import RowUses, tracking
from replicax.variables.variable import Variable


def value_and_grad(
    loss_fn: Callable[[], Any], variables: Any = None, has_aux: bool = False
) -> tuple[Any, Any]:
    """The value of ``loss_fn()`` and its gradient with respect to `variables`.

    In a replica the gradient is the replica's own; reduce it with ``all_reduce``
    or ``merge_call``. `loss_fn` may assign variables, as batch norm does.

    Args:
        loss_fn: A function without arguments that returns a scalar (with
            `has_aux`: a pair of it and anything else).
        variables: The variables, in any nest; the gradients come in that nest. In a tree, the
            gradient of what is no variable of floats is None.
        has_aux: Whether `loss_fn` returns a pair.

    Returns:
        What `loss_fn` returned, and the gradients.

    Raises:
        VariableError: If `variables` is a list with an array, or has no variable or one twice.
        TypeError: Without `variables`, or if all of them are of integers.

    Example:
        >>> import replicax as rx
        >>> w = rx.Variable(3.0)
        >>> loss, gradient = rx.value_and_grad(lambda: w * w, w)
        >>> loss, gradient
        (Array(9., dtype=float32), Array(6., dtype=float32))
    """
    _require_variables(variables, "value_and_grad")
    given, structure = nest.flatten(variables)
    held = [variable_of(leaf) for leaf in given]
    all_variables = [leaf for leaf in held if isinstance(leaf, Variable)]
    # A tree may have frozen arrays in it, a list says what to differentiate by.
    named = variables if isinstance(variables, (list, tuple)) else ()
    others = [leaf for leaf in named if isinstance(leaf, (jax.Array, np.ndarray))]
    if not all_variables:
        others += held
    if others:
        raise VariableError(
            "value_and_grad differentiates with respect to variables; got "
            f"{others[0]!r}. For arrays use jax.value_and_grad."
        )
    # Where none can have a gradient, JAX says so.
    leaves = [leaf for leaf in all_variables if is_differentiable(leaf)] or all_variables
    if len({id(leaf) for leaf in leaves}) != len(leaves):
        names = [leaf.name for leaf in leaves]
        raise VariableError(f"value_and_grad got the same variable twice: {names}.")

    uses = {id(leaf): RowUses(leaf) for leaf in leaves if leaf._reads_rows}

    def loss_of(values: list[Any], tokens: list[Any]) -> Any:
        with overriding(leaves, values), tracking([*uses.values()], tokens):
            return loss_fn()

    values = [leaf.read_value() for leaf in leaves]
    tokens = [jnp.zeros(()) for _ in uses]
    differentiate = jax.value_and_grad(loss_of, argnums=(0, 1), has_aux=has_aux)
    result, (gradients, _) = differentiate(values, tokens)
    found = iter(
        uses[id(leaf)].gradient(gradient) if id(leaf) in uses else gradient
        for leaf, gradient in zip(leaves, gradients, strict=True)
    )
    filled = [next(found) if is_differentiable(leaf) else None for leaf in held]
    return result, nest.unflatten(structure, filled)


def is_differentiable(leaf: Any) -> bool:
    """Whether `leaf` is a variable that can have a gradient."""
    return isinstance(leaf, Variable) and jnp.issubdtype(leaf.dtype, jnp.inexact)


def grad(loss_fn: Callable[[], Any], variables: Any = None, has_aux: bool = False) -> Any:
    """The gradient of ``loss_fn()`` with respect to `variables`, in their nest.

    With `has_aux` a pair of the gradient and what `loss_fn` returned beside the
    loss. See `value_and_grad`.

    Args:
        loss_fn: As for `value_and_grad`.
        variables: The variables, in any nest.
        has_aux: Whether `loss_fn` returns a pair.

    Returns:
        The gradients.

    Raises:
        VariableError: If `variables` is a list with an array, or has no variable or one twice.
        TypeError: Without `variables`, or if all of them are of integers.

    Example:
        >>> import replicax as rx
        >>> w = {"a": rx.Variable(3.0), "b": rx.Variable(2.0)}
        >>> rx.grad(lambda: w["a"] * w["b"], w)
        {'a': Array(2., dtype=float32), 'b': Array(3., dtype=float32)}
    """
    _require_variables(variables, "grad")
    value, gradients = value_and_grad(loss_fn, variables, has_aux)
    return (gradients, value[1]) if has_aux else gradients


def _require_variables(variables: Any, name: str) -> None:
    if variables is None:
        raise TypeError(
            f"{name} needs the variables: write rx.{name}(loss_fn, variables), with a loss_fn "
            f"without arguments. It computes at once and returns no function; for a function of "
            f"arrays use jax.{name}."
        )
