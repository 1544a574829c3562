"""Modules, optimizers and metrics whose variables live in a strategy.

`distribute` takes over what exists. The hooks call it for what is created in a scope, when the
outermost constructor returns: only then every variable has its path, which is its name.

A compiled step has captured a module as the object that it is, and has seen its attributes when it
was traced. So attributes that change afterwards, as ``train()`` and ``eval()`` change them, become
part of what JAX looks programs up by.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from typing import Any

import jax
from flax import nnx

from replicax.core.errors import ContextError, VariableError
from replicax.engine.contexts import stack
from replicax.integrations.flax.variables import (
    can_be_distributed,
    distribute_variable,
    rename,
    variable_in,
)
from replicax.jax_internals.traces import set_everywhere
from replicax.variables.variable import Variable

_nodes: dict[int, weakref.ref[Any]] = {}  # what was distributed, by id
_own: dict[int, weakref.ref[Any]] = {}  # what steps have made for themselves, by id
_unlike_before: dict[tuple[int, str], Any] = {}  # attributes that have changed since
_numbers: dict[frozenset[Any], int] = {frozenset(): 0}
_fresh = itertools.count(1)

_attributes = jax.make_user_context(0)  # a part of every key under which JAX keeps a program


def distribute(tree: Any, strategy: Any) -> Any:
    """Gives NNX objects that were made outside of every scope to a strategy.

    Parameters and the state of optimizers are then mirrored, statistics and metrics are each
    replica's own, as if they had been created in ``strategy.scope()``. Variables that the strategy
    has already stay as they are.

    Args:
        tree: A module, an optimizer, a metric, ``Rngs`` or a variable; or a tuple of them. Give
            an optimizer together with its model, so that its state is where the parameters are.
        strategy: The strategy.

    Returns:
        `tree`, with the same objects in it, changed in place.

    Raises:
        VariableError: If a variable belongs to another strategy, or cannot be distributed.
        ContextError: Inside ``strategy.run``.

    Example:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> from flax import nnx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> model = distribute(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), strategy)
        >>> strategy.run(lambda: model(jnp.ones(3)).shape)
        (2,)
    """
    entry = stack.top()
    if entry is not None and entry.mode is not stack.Mode.SCOPE:
        raise ContextError(
            f"distribute was called inside {stack.describe()}. Call it before Strategy.run."
        )
    take_over([tree], strategy, parameters_of=[tree])
    return tree


def take_over(
    trees: Iterable[Any], strategy: Any, *, parameters_of: Iterable[Any], is_new: bool = False
) -> None:
    """Distributes all variables in `trees`, by their paths.

    Args:
        trees: What has the variables.
        strategy: The strategy.
        parameters_of: Where the parameters are that an optimizer among `trees` may have state for.
        is_new: Whether they were just made, of modules that may have been distributed before.
    """
    for tree in trees:
        found = [(path, node) for path, node in nnx.iter_graph(tree)]
        plain = []
        for path, node in found:
            if isinstance(node, nnx.Variable):
                held = variable_in(node)
                if held is None:
                    plain.append((path, node))
                else:
                    _require_own(held, strategy)
                    if is_new:
                        rename(node, _name(path, node))
            elif isinstance(node, nnx.metrics.Welford) and strategy.num_replicas_in_sync > 1:
                raise VariableError(
                    "nnx.metrics.Welford was given to a strategy of "
                    f"{strategy.num_replicas_in_sync} replicas: its variance is not a sum over "
                    "them. Use nnx.metrics.Average of the values and of their squares."
                )
        plain = [pair for pair in plain if can_be_distributed(pair[1], _name(*pair))]
        plain.sort(key=lambda pair: isinstance(pair[1], nnx.OptState))  # parameters come first
        primaries: dict[tuple[Any, ...], Variable] | None = None
        for path, node in plain:
            primary = None
            if isinstance(node, nnx.OptState):
                if primaries is None:
                    primaries = _parameters(parameters_of)
                primary = _primary(path, node, primaries)
            distribute_variable(node, strategy, _name(path, node), primary)
        for _, node in found:
            if isinstance(node, nnx.Pytree):
                _note(node)


def _name(path: tuple[Any, ...], node: Any) -> str:
    return "/".join(map(str, path)) or type(node).__name__


def _require_own(variable: Variable, strategy: Any) -> None:
    if variable.strategy is not strategy:
        raise VariableError(
            f"NNX variable {variable.name!r} belongs to {variable.strategy!r}, and was given to "
            f"{strategy!r}. Make a copy with nnx.clone, and distribute that."
        )


def _parameters(trees: Iterable[Any]) -> dict[tuple[Any, ...], Variable]:
    found: dict[tuple[Any, ...], Variable] = {}
    for tree in trees:
        for path, node in nnx.iter_graph(tree):
            if not isinstance(node, nnx.Variable) or isinstance(node, nnx.OptState):
                continue
            if (held := variable_in(node)) is not None:
                for start in range(len(path) + 1):  # the model may be part of a larger tree
                    found.setdefault(path[start:], held)
    return found


def _primary(
    path: tuple[Any, ...], node: Any, primaries: dict[tuple[Any, ...], Variable]
) -> Variable | None:
    """The parameter whose path ends `path`, if it has the shape of this state."""
    for start in range(len(path)):
        primary = primaries.get(path[start:])
        if primary is not None:
            return primary if primary.shape == tuple(node.shape) else None
    return None


# -- what is known of modules -----------------------------------------------------------------


def _note(node: Any) -> None:
    key = id(node)
    if key not in _nodes:
        _nodes[key] = weakref.ref(node, lambda _: _forget(key))


def _forget(key: int) -> None:
    _nodes.pop(key, None)
    for changed in [pair for pair in list(_unlike_before) if pair[0] == key]:
        _unlike_before.pop(changed, None)


def is_distributed(node: Any) -> bool:
    """Whether a step may change `node`, an NNX object: all its variables live in a strategy."""
    if isinstance(node, nnx.Variable):
        return variable_in(node) is not None
    if id(node) in _nodes or not isinstance(node, nnx.Pytree):
        return True  # or a function of NNX, such as nnx.jit(f), which changes what it is given
    variables = [v for _, v in nnx.iter_graph(node) if isinstance(v, nnx.Variable)]
    return all(variable_in(v) is not None for v in variables)


def note_made_in_step(node: Any) -> None:
    """Says that a step has made `node` for itself."""
    key = id(node)
    _own[key] = weakref.ref(node, lambda _: _own.pop(key, None))


def is_made_in_step(node: Any) -> bool:
    """Whether a step has made `node` for itself."""
    return id(node) in _own


def is_known(node: Any) -> bool:
    """Whether `node` itself was distributed."""
    return id(node) in _nodes


def note_attribute(node: Any, name: str, value: Any, before: Any) -> None:
    """Says that an attribute of a module has changed from `before` to `value`.

    What JAX has traced with the values of now is found again when they come back.
    """
    if id(node) not in _nodes or value is before:
        return
    if isinstance(value, nnx.Pytree | nnx.Variable) or not _is_comparable(value):
        _nodes.pop(id(node), None)  # is looked at again
        _unlike_before[id(node), name] = next(_fresh), None
    else:
        first = _unlike_before.setdefault((id(node), name), (_key(before), None))[0]
        if first == _key(value):
            del _unlike_before[id(node), name]
        else:
            _unlike_before[id(node), name] = first, _key(value)
    content = frozenset(_unlike_before.items())
    set_everywhere(_attributes, _numbers.setdefault(content, len(_numbers)))


def _is_comparable(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, tuple))


def _key(value: Any) -> Any:
    return type(value).__name__, repr(value)
