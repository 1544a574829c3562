"""Checks what is passed to ``apply_gradients``, and reduces it over the replicas.

Every mistake that can be seen before a collective is found here, with the name
of the variable: after it, only a shape error deep inside Optax would be left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax.backend import placement
from replicax.core import nest
from replicax.core.enums import ReduceOp
from replicax.core.errors import DistributedValueError, VariableError
from replicax.strategies.base import Strategy
from replicax.values.distributed import Mirrored, PerReplica
from replicax.values.traced import TracedPerReplica
from replicax.values.traced_parts import TracedSplit
from replicax.variables.gradients import is_differentiable
from replicax.variables.rows import RowGradient
from replicax.variables.variable import Variable


def checked_pairs(grads_and_vars: Iterable[Any]) -> tuple[list[Any], Any]:
    """The gradients as a list, and the variables as the tree that Optax is to see.

    That tree is the variables' own tree if there is one pair of trees, with None
    for what gets no gradient, and otherwise a list.

    Raises:
        VariableError: If these are no pairs, a gradient is missing, or shapes differ.
    """
    pairs = list(grads_and_vars)
    if not pairs:
        raise VariableError("apply_gradients got no gradients: the list of pairs is empty.")
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise VariableError(
                f"apply_gradients needs pairs (gradient, variable); got {type(pair).__name__} "
                f"{pair!r}. Pass zip(gradients, variables)."
            )
    gradients: list[Any] = []
    for gradient, variables in pairs:
        gradients += _matched(gradient, variables)
    trees = [variables for _, variables in pairs]
    is_one_tree = len(trees) == 1 and not isinstance(trees[0], Variable)
    tree = trained_part(trees[0] if is_one_tree else trees)
    flat = nest.flatten(tree)[0]
    missing = [v.name for g, v in zip(gradients, flat, strict=True) if g is None]
    if missing:
        raise VariableError(
            f"apply_gradients got None as the gradient of {_names(missing)}. The loss does not "
            "depend on it: leave it out of the variables, or pass zeros."
        )
    gradients = [_checked(g, v) for g, v in zip(gradients, flat, strict=True)]
    return gradients, tree


def _matched(gradient: Any, variables: Any) -> list[Any]:
    """One gradient for each variable of one pair that can have one."""
    flat, structure = nest.flatten(variables)
    if flat and not any(isinstance(leaf, Variable) for leaf in flat):
        raise VariableError(
            f"apply_gradients needs variables as the second of each pair; got {flat[0]!r}. Pass "
            "pairs (gradient, variable), and make variables of arrays with variables_from."
        )
    try:
        found = structure.flatten_up_to(gradient)
    except ValueError as error:
        names = [leaf.name for leaf in flat if isinstance(leaf, Variable)]
        raise VariableError(
            f"the gradients of {_names(names)} have another structure than "
            f"the variables: {error}. Pass gradients in the tree of the variables."
        ) from error
    return [g for g, leaf in zip(found, flat, strict=True) if is_differentiable(leaf)]


def trained_part(tree: Any) -> Any:
    """`tree` with None for whatever is no variable that can have a gradient."""
    return nest.map_leaves(lambda leaf: leaf if is_differentiable(leaf) else None, tree)


def _checked(gradient: Any, variable: Variable) -> Any:
    if isinstance(gradient, Variable):
        gradient = gradient.read_value()
    shapes: Sequence[Any]
    if isinstance(gradient, PerReplica):
        shapes = gradient.shapes
    elif isinstance(gradient, RowGradient):
        shapes = (gradient.shape,)
    elif isinstance(gradient, (Mirrored, jax.Array)) or placement.is_array_like(gradient):
        shapes = (tuple(np.shape(gradient)),)
    else:
        raise VariableError(
            f"the gradient of variable {variable.name!r} is {gradient!r}, of type "
            f"{type(gradient).__name__}; expected an array of shape {variable.shape}."
        )
    for shape in shapes:
        if tuple(shape) != variable.shape:
            raise VariableError(
                f"the gradient of variable {variable.name!r} has shape {tuple(shape)}, but the "
                f"variable has shape {variable.shape}. Pair each gradient with its own variable."
            )
    if isinstance(gradient, (int, float)):
        return jnp.asarray(gradient, variable.dtype)
    return gradient


def _names(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"variable {names[0]!r}"
    return f"variables {list(names)}"


def is_reduced(gradient: Any) -> bool:
    """Whether a gradient is the result of a reduction, and the same everywhere."""
    return isinstance(gradient, Mirrored)


def reduced(
    strategy: Strategy,
    op: ReduceOp,
    gradients: Sequence[Any],
    variables: Sequence[Variable],
    *,
    aggregate: bool,
    of_replicas: bool,
) -> list[Any]:
    """One array for each gradient, in cross-replica context; small ones travel together.

    A gradient of which replicas get their parts only stays a `TracedSplit`.

    Args:
        strategy: The strategy in force.
        op: How to combine replicas.
        gradients: What the caller has; a mirrored one is reduced already.
        variables: What they are the gradients of.
        aggregate: Whether the others are to be combined, or must be equal already.
        of_replicas: Whether replicas passed them, so that one object that all of
            them passed counts once for each.

    Raises:
        DistributedValueError: If a gradient that must be reduced already is not.
    """
    results: list[Any] = [None] * len(gradients)
    waiting = []
    for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
        if is_reduced(gradient):
            results[index] = _unwrapped(gradient)
        elif not aggregate:
            results[index] = _equal_everywhere(gradient, variable)
        elif of_replicas or isinstance(gradient, PerReplica):
            waiting.append(index)
        else:
            results[index] = jnp.asarray(gradient)
    if waiting:
        extended = strategy.extended
        pairs = [
            (gradients[index], extended._gradient_destination(variables[index]))
            for index in waiting
        ]
        for index, total in zip(waiting, extended.batch_reduce_to(op, pairs), strict=True):
            results[index] = _unwrapped(total)
    return results


def _unwrapped(total: Any) -> Any:
    if isinstance(total, Mirrored) and not isinstance(total, TracedSplit):
        return total.read_value()
    return total


def _equal_everywhere(gradient: Any, variable: Variable) -> Any:
    """The one value of a gradient that was computed from reduced ones on every replica."""
    if isinstance(gradient, TracedPerReplica):
        return gradient._local  # whether it varies is decided when the trace is complete
    if not isinstance(gradient, PerReplica):
        return jnp.asarray(gradient)
    if not isinstance(gradient._parts()[0], Tracer):
        first, *others = (np.asarray(part).tobytes() for part in gradient.values)
        if all(other == first for other in others):
            return gradient.values[0]
    raise DistributedValueError(
        f"apply_gradients(aggregate=False) got a PerReplica gradient of variable "
        f"{variable.name!r} that is not the same on every replica. Reduce it first with "
        "ReplicaContext.all_reduce, or leave aggregate=True."
    )
