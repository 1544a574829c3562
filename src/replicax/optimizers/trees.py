"""Trees of variables from trees of arrays, and back.

For trees of parameters of other libraries. `Optimizer` takes such trees as they are.
"""

from __future__ import annotations

from typing import Any

import jax

from replicax.core import nest
from replicax.core.enums import VariableAggregation, VariableSynchronization
from replicax.core.errors import DistributedValueError, VariableError
from replicax.values.distributed import ComponentView, Mirrored, PerReplica
from replicax.variables.conversion import converted
from replicax.variables.variable import Variable


def variables_from(
    tree: Any,
    *,
    trainable: bool = True,
    prefix: str = "",
    synchronization: VariableSynchronization = VariableSynchronization.AUTO,
    aggregation: VariableAggregation = VariableAggregation.NONE,
) -> Any:
    """The same tree with a variable for each array, named by its path.

    In a strategy's scope the variables are distributed. The arrays stay the
    caller's: variables copy their initial value.

    Args:
        tree: Any pytree of arrays and numbers.
        trainable: Whether gradients are usually taken with respect to them.
        prefix: Put in front of every name, with a slash.
        synchronization: When the copies of each are brought together.
        aggregation: How updates (or copies, on read) of each are combined.

    Returns:
        The tree of variables.

    Raises:
        VariableError: If a leaf is a variable already, or neither an array nor a number.

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
        if callable(leaf):
            raise VariableError(
                f"variables_from got the function {leaf!r} at {name!r}; expected arrays and "
                "numbers. Take the arrays out first and put the rest back in the step; for an "
                "Equinox module: arrays, rest = eqx.partition(module, eqx.is_array), then "
                "eqx.combine(values_of(variables), rest)."
            )
        return Variable(
            leaf,
            trainable,
            name=name or None,
            synchronization=synchronization,
            aggregation=aggregation,
        )

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


def assign(variables: Any, values: Any) -> Any:
    """Assigns every variable of a tree its value in another one, as ``Variable.assign`` does.

    All values are checked before the first is assigned.

    Args:
        variables: A tree of variables.
        values: A tree of the same structure, of arrays, numbers or variables.

    Returns:
        `variables`.

    Raises:
        VariableError: If the trees differ, a leaf of `variables` is no variable, or a value does
            not fit.
        DistributedValueError: If a value is a `PerReplica`, in cross-replica context.

    Example:
        >>> import replicax as rx
        >>> params = rx.variables_from({"w": 2.0, "b": 0.5})
        >>> new = jax.tree.map(lambda v: v - 0.5, rx.values_of(params))
        >>> rx.values_of(rx.assign(params, new))
        {'b': Array(0., dtype=float32), 'w': Array(1.5, dtype=float32)}
    """
    pairs, structure = jax.tree_util.tree_flatten_with_path(variables, is_leaf=nest.is_leaf)
    for path, leaf in pairs:
        if not isinstance(leaf, Variable):
            raise VariableError(
                f"assign got {leaf!r} at {path_name(path)!r} of the first tree; expected "
                "variables. Make them with variables_from."
            )
    try:
        new = structure.flatten_up_to(values)
    except ValueError as error:
        raise VariableError(
            f"assign got values of another structure than the variables: {error}. Pass a tree "
            "with one value for each variable."
        ) from error
    given = zip(pairs, new, strict=True)
    checked = [converted(value, variable._storage, "assign") for (_, variable), value in given]
    for (_, variable), value in zip(pairs, checked, strict=True):
        variable.assign(value)
    return variables


def path_name(path: tuple[Any, ...]) -> str:
    """A path of a pytree as a name: ``dense/bias/1``.

    Example:
        >>> path_name((jax.tree_util.DictKey("dense"), jax.tree_util.SequenceKey(1)))
        'dense/1'
    """
    return jax.tree_util.keystr(path, simple=True, separator="/")
