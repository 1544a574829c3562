"""Trees of variables from trees of arrays, and back.

For parameters and state of other libraries. `Optimizer` takes such trees as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from replicax.backend.partition import Layout
from replicax.core import nest
from replicax.core.enums import VariableAggregation, VariableSynchronization
from replicax.core.errors import DistributedValueError, VariableError
from replicax.engine.contexts import stack
from replicax.values.distributed import ComponentView, Mirrored, PerReplica
from replicax.variables.conversion import converted
from replicax.variables.mirrored import MirroredVariable
from replicax.variables.variable import Variable

VariableRule = VariableSynchronization | Layout | None
"""What a leaf becomes: mirrored, each replica's own, in pieces; or, for None, it stays as it is."""

VariableRules = Mapping[str, VariableRule] | Sequence[tuple[str | re.Pattern[str], VariableRule]]
"""Patterns of names with what such a leaf becomes; the first one that is found in a name counts."""

_ON_READ = VariableSynchronization.ON_READ


def variables_from(
    tree: Any,
    *,
    trainable: bool = True,
    prefix: str = "",
    synchronization: VariableSynchronization = VariableSynchronization.AUTO,
    aggregation: VariableAggregation = VariableAggregation.NONE,
    rules: VariableRules | None = None,
) -> Any:
    """The same tree with a variable for each array, named by its path.

    In a strategy's scope the variables are distributed. The arrays stay the
    caller's: variables copy their initial value. Functions, strings and None stay
    as they are, as does in an Equinox module everything but its arrays of floats.
    So a module of variables can be called like the module.

    Args:
        tree: Any pytree of arrays and numbers.
        trainable: Whether gradients are usually taken with respect to them.
        prefix: Put in front of every name, with a slash.
        synchronization: When the copies of each are brought together.
        aggregation: How updates (or copies, on read) of each are combined.
        rules: What else some of the leaves become: regular expressions that are
            searched for in the name, the first match wins. ``ON_READ`` is for
            statistics: each replica has its own, a read outside of ``run`` gives
            the mean (of anything but floats, that of replica 0), and no gradient
            is usually taken. ``ON_WRITE`` is mirrored. A layout, as of
            ``Variable(partition_dimensions=)``, cuts the leaf into pieces. None
            leaves it as it is.

    Returns:
        The tree of variables.

    Raises:
        VariableError: If a leaf is a variable already or something else that a variable cannot
            hold, or a rule is none of these.

    Example:
        >>> import replicax as rx
        >>> on_read = rx.VariableSynchronization.ON_READ
        >>> tree = {"dense": {"bias": [0.0, 1.0]}, "stats": {"mean": 0.0}, "name": "net"}
        >>> with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        ...     net = rx.variables_from(tree, prefix="model", rules={"stats/": on_read})
        >>> net["dense"]["bias"][1].name, net["stats"]["mean"].synchronization.name, net["name"]
        ('model/dense/bias/1', 'ON_READ', 'net')
    """
    table = _checked_rules(rules)

    def create(path: Any, leaf: Any, *, in_module: bool) -> Any:
        name = "/".join(part for part in (prefix, path_name(path)) if part)
        if isinstance(leaf, Variable):
            raise VariableError(
                f"variables_from got variable {leaf.name!r} at {name!r}; expected arrays and "
                "numbers. To copy variables, pass values_of(tree)."
            )
        is_ruled, rule = _rule_for(name, table)
        if is_ruled and rule is None:
            return leaf
        if _is_static(leaf) or (in_module and not is_ruled and not _is_parameter(leaf)):
            return leaf
        kind: dict[str, Any] = {
            "trainable": trainable,
            "synchronization": synchronization,
            "aggregation": aggregation,
        }
        if is_ruled and not isinstance(rule, VariableSynchronization):
            kind["partition_dimensions"] = rule
        elif is_ruled:
            is_own = rule is _ON_READ
            is_float = jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
            how = VariableAggregation.MEAN if is_own else VariableAggregation.NONE
            if is_own and not is_float:
                how = VariableAggregation.ONLY_FIRST_REPLICA
            if not is_own or aggregation is not VariableAggregation.NONE:
                how = aggregation
            kind |= {
                "synchronization": rule,
                "aggregation": how,
                "trainable": trainable and not is_own,
            }
        return Variable(leaf, name=name or None, **kind)

    def create_all(path: tuple[Any, ...], node: Any) -> Any:
        if not _is_module(node):
            return create(path, node, in_module=False)
        pairs, structure = jax.tree_util.tree_flatten_with_path(node, is_leaf=nest.is_leaf)
        made = [create((*path, *rest), leaf, in_module=True) for rest, leaf in pairs]
        return nest.unflatten(structure, made)

    return jax.tree_util.tree_map_with_path(
        create_all, tree, is_leaf=lambda node: nest.is_leaf(node) or _is_module(node)
    )


def _checked_rules(rules: Any) -> list[tuple[re.Pattern[str], Any]]:
    pairs = () if rules is None else rules.items() if isinstance(rules, Mapping) else rules
    table = []
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise VariableError(
                f"a rule of variables_from is {pair!r}; expected a pair of a pattern for names and "
                'what such a leaf becomes, such as ("stats", VariableSynchronization.ON_READ).'
            )
        pattern, rule = pair
        if not isinstance(
            rule, (VariableSynchronization, PartitionSpec, list, tuple, type(None))
        ) or rule in (VariableSynchronization.AUTO, VariableSynchronization.NONE):
            raise VariableError(
                f"the rule of variables_from for {pattern!r} is {rule!r}; expected "
                "VariableSynchronization.ON_READ or ON_WRITE, a layout such as [1, 4], or None to "
                "leave the leaf as it is."
            )
        try:
            table.append((re.compile(pattern), rule))
        except (re.error, TypeError) as error:
            raise VariableError(
                f"the pattern {pattern!r} of a rule of variables_from is no regular expression: "
                f"{error}."
            ) from error
    return table


def _rule_for(name: str, table: list[tuple[re.Pattern[str], Any]]) -> tuple[bool, Any]:
    for pattern, rule in table:
        if pattern.search(name):
            return True, rule
    return False, None


def _is_static(leaf: Any) -> bool:
    return isinstance(leaf, (str, bytes)) or callable(leaf)


def _is_parameter(leaf: Any) -> bool:
    """Whether Equinox differentiates `leaf`: numbers and indices of a module are settings."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.inexact)


def _is_module(node: Any) -> bool:
    """Whether `node` is an Equinox module."""
    return any(
        base.__name__ == "Module" and base.__module__.partition(".")[0] == "equinox"
        for base in type(node).__mro__
    )


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
    """Assigns every variable of a tree its value in another one.

    All values are checked before the first is assigned. In a replica a variable with an
    aggregation combines the values of all replicas, as ``Variable.assign`` does; a mirrored one
    without needs a value that is the same on all of them.

    Args:
        variables: A tree of variables.
        values: A tree of the same structure, of arrays, numbers or variables.

    Returns:
        `variables`.

    Raises:
        VariableError: If the trees differ, there is no variable, or a value does not fit or, in
            an eager replica, differs between replicas.
        TraceError: If it differs in a compiled step.
        DistributedValueError: If a value is a `PerReplica`, in cross-replica context.

    Example:
        >>> import replicax as rx
        >>> params = rx.variables_from({"w": 2.0, "b": 0.5})
        >>> new = jax.tree.map(lambda v: v - 0.5, rx.values_of(params))
        >>> rx.values_of(rx.assign(params, new))
        {'b': Array(0., dtype=float32), 'w': Array(1.5, dtype=float32)}
    """
    pairs, structure = jax.tree_util.tree_flatten_with_path(variables, is_leaf=nest.is_leaf)
    if pairs and not any(isinstance(leaf, Variable) for _, leaf in pairs):
        path, leaf = pairs[0]
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
    given = []
    for (path, leaf), value in zip(pairs, new, strict=True):
        if isinstance(leaf, Variable):
            given.append((leaf, converted(value, leaf._storage, "assign")))
        elif not _is_unchanged(leaf, value):
            raise VariableError(
                f"assign got {value!r} at {path_name(path)!r}, where the first tree has {leaf!r}, "
                "which is no variable and cannot change. Let variables_from make one of it."
            )
    equal = [(variable, value) for variable, value in given if _must_be_equal(variable)]
    if equal:
        together, alike = zip(*equal, strict=True)
        together[0].strategy.extended.assign_together(together, alike)
    for variable, value in given:
        if not _must_be_equal(variable):
            variable.assign(value)
    return variables


def _is_unchanged(leaf: Any, value: Any) -> bool:
    if value is leaf:
        return True
    if isinstance(leaf, (str, bytes, bool, int, float, complex)) or callable(leaf):
        return type(value) is type(leaf) and bool(value == leaf)
    return False


def _must_be_equal(variable: Variable) -> bool:
    """Whether all replicas must bring one value, in the replica that runs here."""
    entry = stack.top()
    return (
        isinstance(variable, MirroredVariable)
        and variable.aggregation is VariableAggregation.NONE
        and entry is not None
        and entry.mode is stack.Mode.REPLICA
        and entry.strategy is variable.strategy
        and variable.strategy.num_replicas_in_sync > 1
    )


def path_name(path: tuple[Any, ...]) -> str:
    """A path of a pytree as a name: ``dense/bias/1``.

    Example:
        >>> path_name((jax.tree_util.DictKey("dense"), jax.tree_util.SequenceKey(1)))
        'dense/1'
    """
    return jax.tree_util.keystr(path, simple=True, separator="/")
