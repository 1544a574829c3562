"""Keeps the state of an Optax transformation in variables.

A leaf of the state that belongs to one parameter is a *slot*: a variable on the
devices of that parameter, cut into pieces as it is. Everything else (counts,
hyperparameters, random keys) is a variable on the devices for non-slot state.
`optimizers.optimizer` is the only caller, always in cross-replica context.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax.backend import placement
from replicax.core import nest
from replicax.core.errors import VariableError
from replicax.optimizers.trees import path_name
from replicax.strategies.base import Strategy
from replicax.variables.creation import layout_like
from replicax.variables.variable import Variable


@dataclasses.dataclass(frozen=True, slots=True)
class StateLeaf:
    """One leaf of the transformation's state.

    Attributes:
        variable: What holds it.
        primary: The parameter it belongs to, or None.
        slot: What it is of that parameter, such as ``0/mu``; its path if there is none.
        key_impl: For a random key, whose data the variable holds: its kind.
    """

    variable: Variable
    primary: Variable | None
    slot: str
    key_impl: Any = None

    def read(self) -> Any:
        """The value that the transformation expects."""
        value = self.variable.read_value()
        return (
            value if self.key_impl is None else jax.random.wrap_key_data(value, impl=self.key_impl)
        )

    def stored(self, value: Any) -> Any:
        """A new value of the leaf as the variable holds it.

        Raises:
            VariableError: If its shape or kind of dtype is another.
        """
        if self.key_impl is not None:
            return jax.random.key_data(value)
        value = jnp.asarray(value)
        variable = self.variable
        same_kind = jnp.issubdtype(value.dtype, jnp.inexact) == jnp.issubdtype(
            variable.dtype, jnp.inexact
        )
        if value.shape != variable.shape or not same_kind:
            raise VariableError(
                f"the transformation changed its state {variable.name!r} from shape "
                f"{variable.shape} and dtype {variable.dtype} to shape {value.shape} and dtype "
                f"{value.dtype}. A transformation must keep the types of its state."
            )
        return value.astype(variable.dtype)


class OptimizerState:
    """The parameters of one optimizer, and the state of its transformation.

    Args:
        strategy: The strategy in force.
        name: The optimizer's name, in front of the names of the state.
        transformation: The Optax transformation.
        tree: The parameters, in the tree that the transformation sees.
        trained: The part of `tree` that gradients are for.

    Attributes:
        structure: The structure of the parameters.
        trained_structure: The structure of the gradients.
        parameters: The variables of `tree`.
        trained: The variables that gradients are for, in order.
        devices: Where non-slot state is.
    """

    def __init__(
        self, strategy: Strategy, name: str, transformation: Any, tree: Any, trained: Any
    ) -> None:
        """Initialises the transformation and creates the variables."""
        self.parameters, self.structure = nest.flatten(tree)
        self.trained, self.trained_structure = nest.flatten(trained)
        self.devices = strategy.extended.non_slot_devices(self.parameters)
        values = nest.unflatten(self.structure, self.read_parameters())
        paths, self._structure = jax.tree_util.tree_flatten_with_path(
            _initial_state(transformation, values)
        )
        primaries = _paths_of(trained)
        self._leaves = [
            self._create(strategy, name, primaries, path, value) for path, value in paths
        ]

    def _create(
        self, strategy: Strategy, name: str, primaries: dict[Any, Variable], path: Any, value: Any
    ) -> Any:
        if not placement.is_array_like(value) and not isinstance(value, Tracer):
            return value
        key_impl = None
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            key_impl, value = jax.random.key_impl(value), jax.random.key_data(value)
        primary, prefix = _owner(primaries, path, np.shape(value))
        slot = path_name(prefix)
        parts = (name, slot) if primary is None else (name, slot, primary.name)
        where = self.devices if primary is None else primary
        layout = layout_like(primary, np.shape(value), strategy)
        with strategy.extended.colocate_vars_with(where):
            variable = Variable(
                value, False, name="/".join(part for part in parts if part), **layout
            )
        return StateLeaf(variable, primary, slot, key_impl)

    @property
    def variables(self) -> list[Variable]:
        """The variables that hold the state."""
        return [leaf.variable for leaf in self._leaves if isinstance(leaf, StateLeaf)]

    @property
    def tree(self) -> Any:
        """The state, with a variable for each array."""
        leaves = [leaf.variable if isinstance(leaf, StateLeaf) else leaf for leaf in self._leaves]
        return nest.unflatten(self._structure, leaves)

    def hyperparameters(self, name: str) -> list[Variable]:
        """The variables of a number that ``optax.inject_hyperparams`` keeps in its state.

        A number that follows a schedule is left out: the next update computes it anew.
        """
        leaves = {leaf.slot: leaf for leaf in self._leaves if isinstance(leaf, StateLeaf)}
        found = []
        for slot, leaf in leaves.items():
            before, mark, last = slot.rpartition("hyperparams/")
            schedule = f"{before}hyperparams_states/{name}/"
            if mark and last == name and not any(s.startswith(schedule) for s in leaves):
                found.append(leaf.variable)
        return found

    def slots_of(self, variable: Variable) -> dict[str, Variable]:
        """The slots of one parameter, by what they are."""
        return {leaf.slot: leaf.variable for leaf in self._slots() if leaf.primary is variable}

    def read_parameters(self) -> list[Any]:
        """The current values of the parameters."""
        return [variable.read_value() for variable in self.parameters]

    def read(self) -> Any:
        """The current state, for the transformation."""
        leaves = [leaf.read() if isinstance(leaf, StateLeaf) else leaf for leaf in self._leaves]
        return nest.unflatten(self._structure, leaves)

    def write(
        self, strategy: Strategy, parameters: Any, state: Any, also: Sequence[tuple[Variable, Any]]
    ) -> None:
        """Assigns the parameters, each with its slots, and everything else.

        Args:
            strategy: The strategy in force.
            parameters: The new values, in the tree of the parameters.
            state: The new state of the transformation.
            also: Further non-slot variables and their new values.

        Raises:
            VariableError: If the transformation returned other structures or types.
        """
        values, leaves = self.flat(parameters, state)
        slots: dict[int, list[tuple[Variable, Any]]] = {id(v): [] for v in self.parameters}
        others = list(also)
        for leaf, value in zip(self._leaves, leaves, strict=True):
            if isinstance(leaf, StateLeaf):
                group = others if leaf.primary is None else slots[id(leaf.primary)]
                group.append((leaf.variable, leaf.stored(value)))
        extended = strategy.extended
        for variable, value in zip(self.parameters, values, strict=True):
            own = slots[id(variable)]
            extended.update(variable, _assign_with_slots, args=(value, *_unzipped(own)))
        self.write_non_slot(strategy, others)

    def write_non_slot(self, strategy: Strategy, pairs: Sequence[tuple[Variable, Any]]) -> None:
        """Assigns non-slot variables their new values."""
        strategy.extended.update_non_slot(self.devices, _assign_all, args=_unzipped(pairs))

    @property
    def leaves(self) -> list[Any]:
        """The leaves of the state, a `StateLeaf` for each array."""
        return list(self._leaves)

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The state with these leaves, for the transformation."""
        return nest.unflatten(self._structure, leaves)

    def flat(self, parameters: Any, state: Any) -> tuple[list[Any], list[Any]]:
        """The leaves of what the transformation returned, in the order of the variables.

        Raises:
            VariableError: If it returned other structures.
        """
        values = self._flat(self.structure, parameters, "updates")
        return values, self._flat(self._structure, state, "a state")

    def _slots(self) -> list[StateLeaf]:
        return [
            leaf
            for leaf in self._leaves
            if isinstance(leaf, StateLeaf) and leaf.primary is not None
        ]

    @staticmethod
    def _flat(structure: Any, tree: Any, what: str) -> list[Any]:
        leaves, found = nest.flatten(tree)
        if found != structure:
            raise VariableError(
                f"the transformation returned {what} of structure {found}; expected {structure}. A "
                "transformation must keep the structure of the parameters and of its state."
            )
        return leaves


def _assign_with_slots(
    variable: Any, value: Any, slots: Sequence[Any], values: Sequence[Any]
) -> None:
    variable.assign(value)
    _assign_all(slots, values)


def _assign_all(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _unzipped(pairs: Sequence[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    return [first for first, _ in pairs], [second for _, second in pairs]


def _initial_state(transformation: Any, values: Any) -> Any:
    """The state for these parameters; concrete as far as it does not depend on traced values."""
    if not any(isinstance(value, Tracer) for value in jax.tree.leaves(values)):
        return transformation.init(values)
    try:
        with jax.ensure_compile_time_eval():
            return transformation.init(values)
    except Exception:  # it computes with the values, which only the trace can do
        return transformation.init(values)


def _paths_of(tree: Any) -> dict[tuple[Any, ...], Variable]:
    return dict(jax.tree_util.tree_flatten_with_path(tree, is_leaf=nest.is_leaf)[0])


def _owner(
    primaries: dict[Any, Variable], path: tuple[Any, ...], shape: tuple[int, ...]
) -> tuple[Variable | None, tuple[Any, ...]]:
    """The parameter whose path ends `path`, and what is in front of that.

    By path and not by shape: a factored second moment has the parameter's place in
    the tree, and a shape of its own.
    """
    for start in range(len(path)):
        variable = primaries.get(path[start:])
        if variable is not None:
            return variable, path[:start]
    alone = primaries.get(())
    if alone is not None and alone.shape == shape and shape:
        return alone, path
    return None, path
