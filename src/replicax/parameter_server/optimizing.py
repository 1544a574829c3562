"""Optimizers on servers: gradients leave the closure, slots never leave their server.

`Optimizer` asks here, by ``StrategyExtended.apply_gradients``. Its state is made as everywhere, of
variables; those live beside their parameters, and state of no single parameter on every server that
updates something.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.core import nest
from replicax.core.errors import TraceError, VariableError
from replicax.jax_internals.traces import outside_traces
from replicax.optimizers.gradients import checked_pairs
from replicax.optimizers.state import OptimizerState, StateLeaf
from replicax.parameter_server.cluster import ServerCluster
from replicax.parameter_server.messages import FixedLeaf, OptimizerSpec, UpdateKind
from replicax.parameter_server.separability import UpdateProgram, refuse_mixing, refuse_whole
from replicax.parameter_server.storage import ServerStorage
from replicax.parameter_server.tracing import (
    ClosureTrace,
    RowsPurpose,
    UpdatePurpose,
    require_closure,
)
from replicax.variables.rows import RowGradient
from replicax.variables.variable import Variable


class ServerOptimizers:
    """The optimizers of one strategy that its servers know.

    Args:
        strategy: The strategy.
        cluster: Its servers.
    """

    def __init__(self, strategy: Any, cluster: ServerCluster) -> None:
        self._strategy = weakref.ref(strategy)
        self._cluster = cluster
        self._known: weakref.WeakKeyDictionary[Any, RegisteredOptimizer] = (
            weakref.WeakKeyDictionary()
        )

    def apply(self, optimizer: Any, grads_and_vars: Iterable[tuple[Any, Any]]) -> None:
        """What ``optimizer.apply_gradients`` does in a closure.

        Raises:
            ContextError: Outside of one.
            TraceError: If it is called twice in one closure.
            VariableError: If the transformation, or a gradient, cannot be used on servers.
        """
        what = f"apply_gradients of optimizer {optimizer.name!r}"
        trace = require_closure(self._strategy(), what)
        gradients, tree = checked_pairs(grads_and_vars)
        variables = nest.flatten(tree)[0]
        optimizer._check_variables(variables)
        if optimizer.state is None:
            optimizer.build(tree)
        state: OptimizerState = optimizer._state
        optimizer._require_same(variables, [id(v) for v in state.trained], "apply_gradients")
        known = self._known.get(optimizer)
        if known is None:
            with outside_traces():  # to try the transformation takes concrete values
                known = RegisteredOptimizer(self._cluster, optimizer, state)
            self._known[optimizer] = known
        if known.optimizer_id in trace.optimizers:
            raise TraceError(
                f"{what} is called twice in one closure, and the servers update once for each. Add "
                "the gradients, or schedule two closures."
            )
        trace.optimizers.add(known.optimizer_id)
        by_variable = {id(v): g for v, g in zip(variables, gradients, strict=True)}
        ordered = [by_variable[id(v)] for v in state.trained]
        if optimizer._clip_global_norm is not None:
            ordered = _clipped(ordered, optimizer._clip_global_norm)
        known.emit(trace, ordered, what)
        optimizer.iterations.assign_add(1)


class RegisteredOptimizer:
    """One optimizer, as the servers know it.

    Attributes:
        optimizer_id: Its number.
    """

    def __init__(self, cluster: ServerCluster, optimizer: Any, state: OptimizerState) -> None:
        """Checks that the servers can do what the optimizer does, and tells them of it.

        Raises:
            VariableError: If they cannot.
        """
        self.optimizer_id = cluster.new_number()
        self._state = state
        self._transformation, self._inputs = optimizer._elsewhere()
        _refuse_unknown(optimizer, state)
        servers = sorted({shard.server for v in state.parameters for shard in _shards(v)})
        self._program = self._update_program()
        found = self._program.separability()
        self._whole = dict(found.whole)
        names = [variable.name for variable in state.parameters]
        if len(servers) > 1:
            refuse_mixing(found, names, optimizer.name)
        for index, variable in enumerate(state.parameters):
            if len(_shards(variable)) > 1:
                part = variable._storage.shards[0].shape
                refuse_whole(self._program, found, index, variable.name, part)
        by_rows = not found.random and self._program.keeps_rows_without_gradient()
        for server in servers:
            spec = self._spec(server, by_rows=by_rows)
            cluster.register_optimizer(server, spec)

    def _spec(self, server: int, *, by_rows: bool) -> OptimizerSpec:
        state = self._state
        leaves: list[Any] = []
        slots: list[tuple[int, int]] = []
        for leaf in state.leaves:
            if not isinstance(leaf, StateLeaf):
                leaves.append(FixedLeaf(leaf))
                continue
            shard = _shard_on(leaf.variable, server)
            leaves.append(shard)
            if leaf.primary is not None and shard is not None:
                primary = _shard_on(leaf.primary, server)
                assert primary is not None
                slots.append((shard, primary))
        parameters = [_shard_on(variable, server) for variable in state.parameters]
        can_rows = by_rows and not self._whole and all(_is_row_wise(leaf) for leaf in state.leaves)
        return OptimizerSpec(
            self.optimizer_id,
            self._transformation,
            nest.unflatten(state.structure, parameters),
            state.unflatten(leaves),
            tuple(slots),
            tuple(_required_on(variable, server) for variable in self._inputs),
            can_rows,
        )

    def _update_program(self) -> UpdateProgram:
        """What the update computes, for any values of its inputs."""
        state = self._state
        index_of = {id(variable): index for index, variable in enumerate(state.parameters)}
        leaves = [
            _struct(leaf.variable) if isinstance(leaf, StateLeaf) else leaf for leaf in state.leaves
        ]
        owners = [
            None if leaf.primary is None else index_of[id(leaf.primary)]
            for leaf in state.leaves
            if isinstance(leaf, StateLeaf)
        ]
        shapes = [_struct(variable) for variable in state.parameters]
        ones = [jnp.ones(variable.shape, variable.dtype) for variable in self._inputs]
        return UpdateProgram(
            self._transformation(ones), state.structure, shapes, state.unflatten(leaves), owners
        )

    def emit(self, trace: ClosureTrace, gradients: Sequence[Any], what: str) -> None:
        """Lets gradients leave the closure; from then on only the servers know the variables."""
        for variable, gradient in zip(self._state.parameters, gradients, strict=True):
            storage: Any = variable._storage
            rows = None
            kind = UpdateKind.GRADIENT
            value = gradient
            if isinstance(gradient, RowGradient):
                kind, value = UpdateKind.ROW_GRADIENT, gradient.values
                rows = trace.emit(RowsPurpose(), gradient.rows.astype(jnp.int32), what)
            purpose = UpdatePurpose(kind, storage, rows, self.optimizer_id)
            trace.emit(purpose, jnp.asarray(value), what)
        for variable in (*self._state.parameters, *self._state.variables):
            trace.note_update_there(_storage(variable))


def _refuse_unknown(optimizer: Any, state: OptimizerState) -> None:
    name = optimizer.name
    if optimizer._accumulation is not None:
        raise VariableError(
            f"optimizer {name!r} has accumulate_steps, which servers do not do. Wrap the "
            "transformation in optax.MultiSteps on one parameter server, or leave it out."
        )
    if state.trained_structure != state.structure:
        raise VariableError(
            f"optimizer {name!r} is a lookahead of two trees of parameters, which servers do not "
            "do. Use its inner transformation alone."
        )
    for leaf in state.leaves:
        if isinstance(leaf, StateLeaf) and leaf.key_impl is not None:
            raise VariableError(
                f"optimizer {name!r} keeps a random key in its state ({leaf.variable.name!r}), "
                "which would give each parameter server other numbers. Add noise to the gradients "
                "in the closure."
            )


def _struct(variable: Variable) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(variable.shape, variable.dtype)


def _storage(variable: Variable) -> ServerStorage:
    storage = variable._storage
    assert isinstance(storage, ServerStorage)
    return storage


def _shards(variable: Variable) -> tuple[Any, ...]:
    return _storage(variable).shards


def _shard_on(variable: Variable, server: int) -> int | None:
    """The shard of a variable on a server; there is one at most."""
    found = [shard.shard_id for shard in _shards(variable) if shard.server == server]
    return found[0] if found else None


def _required_on(variable: Variable, server: int) -> int:
    shard = _shard_on(variable, server)
    assert shard is not None, f"{variable.name} has a copy on every server"
    return shard


def _is_row_wise(leaf: Any) -> bool:
    """Whether a slot has a row for each row of its parameter."""
    if not isinstance(leaf, StateLeaf) or leaf.primary is None:
        return True
    return leaf.variable.shape == leaf.primary.shape


def _clipped(gradients: Sequence[Any], largest: float) -> list[Any]:
    """Gradients whose global norm is at most `largest`."""
    unique = [g.summed() if isinstance(g, RowGradient) else g for g in gradients]
    values = [g.values if isinstance(g, RowGradient) else g for g in unique]
    squares: Callable[[Any], Any] = lambda g: jnp.sum(jnp.square(g.astype(jnp.float32)))  # noqa: E731
    norm = jnp.sqrt(sum((squares(value) for value in values), jnp.zeros((), np.float32)))
    factor = jnp.where(norm < largest, 1.0, largest / norm)
    return [
        g.scaled(factor) if isinstance(g, RowGradient) else (g * factor).astype(g.dtype)
        for g in unique
    ]
