"""One step of an optimizer whose parameters, gradients or slots are split over the replicas.

Every replica updates its parts. Parameters that are stored whole are gathered afterwards. In a
compiled replica function only; elsewhere values are whole, and `Optimizer` needs nothing of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from replicax.backend.shards import ShardLayout
from replicax.engine.analysis.uniform import uniform
from replicax.engine.trace.frame import current_frame
from replicax.optimizers.parts import Split, gather_together, part_of, run_on_parts
from replicax.optimizers.state import OptimizerState, StateLeaf
from replicax.strategies.base import Strategy
from replicax.values.traced_parts import TracedSplit
from replicax.variables.conversion import check_dtype
from replicax.variables.sharded import ShardedVariable
from replicax.variables.variable import Variable

Step = Callable[[list[Any], list[Any], Any], tuple[Any, Any]]
"""From gradients, parameters and the state to the new parameters and the new state."""


def works_on_parts(state: OptimizerState, gradients: Sequence[Any]) -> bool:
    """Whether there is anything to be updated in parts here."""
    frame = current_frame()
    if frame is None or not frame.in_replica:
        return False
    held = (*state.parameters, *state.variables)
    return any(isinstance(gradient, TracedSplit) for gradient in gradients) or any(
        isinstance(variable, ShardedVariable) for variable in held
    )


def update_on_parts(
    strategy: Strategy,
    state: OptimizerState,
    gradients: Sequence[Any],
    step: Step,
    also: Sequence[tuple[Variable, Any]],
) -> None:
    """Makes one step, in cross-replica context.

    Args:
        strategy: The strategy in force.
        state: The parameters and the state.
        gradients: The reduced gradients.
        step: What to compute.
        also: Further non-slot variables and their new values.

    Raises:
        VariableError: If the transformation returned other structures or types.
        TraceError: If a gradient differs between replicas, when the trace is complete.
    """
    layouts = _layouts(state, gradients)
    leaves = [leaf for leaf in state.leaves if isinstance(leaf, StateLeaf)]
    inputs = [
        *(
            _gradient(gradient, variable, layouts.get(id(variable)))
            for gradient, variable in zip(gradients, state.trained, strict=True)
        ),
        *(_held(variable, layouts.get(id(variable))) for variable in state.parameters),
        *(_held_by(leaf) for leaf in leaves),
    ]

    def whole_step(values: list[Any]) -> tuple[list[Any], list[Any]]:
        rest = iter(values)
        given = [next(rest) for _ in state.trained]
        parameters = [next(rest) for _ in state.parameters]
        tree = state.unflatten(
            [next(rest) if isinstance(leaf, StateLeaf) else leaf for leaf in state.leaves]
        )
        new, new_state = state.flat(*step(given, parameters, tree))
        stored = [
            leaf.stored(value)
            for leaf, value in zip(state.leaves, new_state, strict=True)
            if isinstance(leaf, StateLeaf)
        ]
        return [jnp.asarray(value) for value in new], stored

    outs, _ = run_on_parts(whole_step, inputs)
    variables = [*state.parameters, *(leaf.variable for leaf in leaves)]
    non_slot = {id(leaf.variable) for leaf in leaves if leaf.primary is None}
    _write(strategy, state, list(zip(variables, outs, strict=True)), non_slot, also)


def _layouts(state: OptimizerState, gradients: Sequence[Any]) -> dict[int, ShardLayout]:
    """How the parameters are split that are updated in parts, by their ``id``."""
    found = {
        id(variable): gradient._layout
        for gradient, variable in zip(gradients, state.trained, strict=True)
        if isinstance(gradient, TracedSplit)
    }
    for leaf in state.leaves:
        if isinstance(leaf, StateLeaf) and isinstance(leaf.variable, ShardedVariable):
            found[id(leaf.primary)] = leaf.variable._layout
    return found


def _gradient(gradient: Any, variable: Variable, layout: ShardLayout | None) -> Any:
    if isinstance(gradient, TracedSplit):
        return Split(gradient._part, gradient._layout, gradient._replicated)
    whole = uniform(jnp.asarray(gradient), f"the gradient of variable {variable.name!r}")
    return whole if layout is None else Split(layout.own_part(whole), layout, lambda: whole)


def _held(variable: Variable, layout: ShardLayout | None) -> Any:
    """The value of a variable, as a part where there is one."""
    if isinstance(variable, ShardedVariable):
        return Split(variable._read_part(), variable._layout, variable.read_value)
    whole = variable.read_value()
    return whole if layout is None else Split(layout.own_part(whole), layout, lambda: whole)


def _held_by(leaf: StateLeaf) -> Any:
    return _held(leaf.variable, None) if isinstance(leaf.variable, ShardedVariable) else leaf.read()


def _write(
    strategy: Strategy,
    state: OptimizerState,
    pairs: Sequence[tuple[Variable, Any]],
    non_slot: set[int],
    also: Sequence[tuple[Variable, Any]],
) -> None:
    """Assigns the new values: parts where a variable is split, and otherwise the whole."""
    kept_whole = []
    for variable, value in pairs:
        if isinstance(variable, ShardedVariable):
            part = part_of(value, variable._layout)
            check_dtype(part.dtype, variable, "the update")
            variable._assign_part(part.astype(variable.dtype))
        else:
            kept_whole.append((variable, value))
    extended = strategy.extended
    wholes = gather_together([value for _, value in kept_whole], extended._reduction)
    others = list(also)
    for (variable, _), value in zip(kept_whole, wholes, strict=True):
        if id(variable) in non_slot:
            others.append((variable, value))
        else:
            extended.update(variable, lambda held, new: held.assign(new), args=(value,))
    state.write_non_slot(strategy, others)
