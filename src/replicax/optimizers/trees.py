"""Trees of variables from trees of arrays, and back."""

from __future__ import annotations

from typing import Any

import jax

from replicax.core import nest
from replicax.core.errors import DistributedValueError, VariableError
from replicax.values.distributed import ComponentView, Mirrored, PerReplica
from replicax.variables.variable import Variable


def variables_from(tree: Any, *, trainable: bool = True, prefix: str = "") -> Any:
    """The same tree with a variable for each array, named by its path.

    In a strategy's scope the variables are distributed. The arrays stay the
    caller's: variables copy their initial value.

    Args:
        tree: Any pytree of arrays and numbers.
        trainable: Whether gradients are usually taken with respect to them.
        prefix: Put in front of every name, with a slash.

    Returns:
        The tree of variables.

    Raises:
        VariableError: If a leaf is a variable already.

    Example:
        >>> import replicax as rx
        >>> with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        ...     params = rx.variables_from({"dense": {"bias": [0.0, 1.0]}}, prefix="model")
        >>> params["dense"]["bias"][1].name
        'model/dense/bias/1'
    """

    def create(path: Any, leaf: Any) -> Variable:
        name = "/".join(part for part in (prefix, path_name(path)) if part)
        if isinstance(leaf, Variable):
            raise VariableError(
                f"variables_from got variable {leaf.name!r} at {name!r}; expected arrays and "
                "numbers. To copy variables, pass values_of(tree)."
            )
        return Variable(leaf, trainable, name=name or None)

    return jax.tree_util.tree_map_with_path(create, tree, is_leaf=nest.is_leaf)


def values_of(tree: Any) -> Any:
    """The same tree with the current value of each variable, as an array.

    Other leaves stay as they are.

    Args:
        tree: Any pytree.

    Returns:
        The tree of arrays.

    Raises:
        DistributedValueError: If a leaf differs between replicas.

    Example:
        >>> import replicax as rx
        >>> rx.values_of({"w": rx.Variable([1.0, 2.0]), "steps": 3})
        {'steps': 3, 'w': Array([1., 2.], dtype=float32)}
    """

    def value_of(path: Any, leaf: Any) -> Any:
        if isinstance(leaf, PerReplica):
            raise DistributedValueError(
                f"values_of got a PerReplica value at {path_name(path)!r}, which has no single "
                "value. Combine the replicas first with strategy.reduce."
            )
        if isinstance(leaf, (Variable, Mirrored, ComponentView)):
            return leaf.read_value()  # pyright: ignore[reportAttributeAccessIssue]
        return leaf

    return jax.tree_util.tree_map_with_path(value_of, tree, is_leaf=nest.is_leaf)


def path_name(path: tuple[Any, ...]) -> str:
    """A path of a pytree as a name: ``dense/bias/1``.

    Example:
        >>> path_name((jax.tree_util.DictKey("dense"), jax.tree_util.SequenceKey(1)))
        'dense/1'
    """
    return jax.tree_util.keystr(path, simple=True, separator="/")
