"""An optimizer on one server: updates the shards that are here, by the gradients that come.

The transformation sees the whole tree, with None where a leaf is held elsewhere, so that masks and
labels still fit. Gradients by rows update rows only, where that means the same; elsewhere they are
made dense here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from replicax.parameter_server.messages import FixedLeaf, OptimizerSpec, Update, UpdateKind

if TYPE_CHECKING:
    from replicax.parameter_server.server import HeldShard


class ServerOptimizer:
    """The update of an optimizer's shards on one server, as programs."""

    def __init__(self, spec: OptimizerSpec) -> None:
        """Prepares for the shards in `spec`."""
        self._spec = spec
        self._parameters, self._tree = jax.tree.flatten(spec.parameters)
        leaves, self._state_tree = jax.tree.flatten(spec.state)
        self._state_leaves = leaves
        self._state = [leaf for leaf in leaves if not isinstance(leaf, FixedLeaf)]
        self._primary = dict(spec.slots)
        self._programs: dict[Any, Any] = {}

    def update(
        self, shards: Mapping[int, HeldShard], gradients: Sequence[Update]
    ) -> list[HeldShard]:
        """Updates the parameters and their state by one gradient each.

        Args:
            shards: All shards of the server.
            gradients: An update for each parameter that is here.

        Returns:
            The shards that were changed.
        """
        given = {update.shard_id: update for update in gradients}
        held = [shards[shard_id] for shard_id in (*self._parameters, *self._state)]
        is_shared = tuple(shard.is_shared for shard in held)
        by_rows = tuple(given[i].kind is UpdateKind.ROW_GRADIENT for i in self._parameters)
        program = self._programs.get((is_shared, by_rows))
        if program is None:
            program = self._programs[is_shared, by_rows] = self._compiled(is_shared, by_rows)
        taken = [shard.value for shard in held if not shard.is_shared]
        kept = [shard.value for shard in held if shard.is_shared]
        pairs = [(given[i].rows, given[i].value) for i in self._parameters]
        inputs = [shards[shard_id].value for shard_id in self._spec.inputs]
        for shard, value in zip(held, program(taken, kept, pairs, inputs), strict=True):
            shard.replace(value)
        return held

    def _compiled(self, is_shared: tuple[bool, ...], by_rows: tuple[bool, ...]) -> Any:
        def compute(
            taken: list[Any], kept: list[Any], pairs: list[Any], inputs: list[Any]
        ) -> list[Any]:
            sources = {False: iter(taken), True: iter(kept)}
            values = [next(sources[shared]) for shared in is_shared]
            return self._updated(values, pairs, inputs, by_rows)

        return jax.jit(compute, donate_argnums=(0,))

    def _updated(
        self, values: list[Any], pairs: list[Any], inputs: list[Any], by_rows: Sequence[bool]
    ) -> list[Any]:
        """The new values of the parameters, then of the state."""
        count = len(self._parameters)
        rows_of: dict[int, Any] = {}  # of the parameters of which only some rows are computed with
        gradients = []
        for shard_id, value, (rows, gradient), is_sparse in zip(
            self._parameters, values, pairs, by_rows, strict=False
        ):
            gradient = gradient.astype(value.dtype)
            if is_sparse and self._spec.by_rows:
                rows, gradient = summed_rows(rows, gradient, value.shape[0])
                rows_of[shard_id] = rows
            elif is_sparse:
                gradient = jnp.zeros_like(value).at[rows].add(gradient, mode="drop")
            gradients.append(gradient)
        owners = [self._primary.get(i, i) for i in (*self._parameters, *self._state)]
        seen = [
            value if owner not in rows_of else _rows(value, rows_of[owner])
            for owner, value in zip(owners, values, strict=True)
        ]
        new, new_state = self._step(gradients, seen[:count], seen[count:], inputs)
        return [
            result.astype(value.dtype)
            if owner not in rows_of
            else value.at[rows_of[owner]].set(result.astype(value.dtype), mode="drop")
            for owner, value, result in zip(owners, values, [*new, *new_state], strict=True)
        ]

    def _step(
        self, gradients: list[Any], values: list[Any], state: list[Any], inputs: list[Any]
    ) -> Any:
        import optax

        given = iter(state)
        leaves = [
            leaf.value if isinstance(leaf, FixedLeaf) else next(given)
            for leaf in self._state_leaves
        ]
        parameters = jax.tree.unflatten(self._tree, values)
        updates, new_state = self._spec.transformation(inputs).update(
            jax.tree.unflatten(self._tree, gradients),
            jax.tree.unflatten(self._state_tree, leaves),
            parameters,
        )
        new = jax.tree.leaves(optax.apply_updates(parameters, updates))
        new_leaves = self._state_tree.flatten_up_to(new_state)
        return new, [
            jnp.asarray(value)
            for leaf, value in zip(self._state_leaves, new_leaves, strict=True)
            if not isinstance(leaf, FixedLeaf)
        ]


def _rows(value: Any, rows: Any) -> Any:
    return value.at[rows].get(mode="fill", fill_value=0)


@functools.partial(jax.jit, static_argnums=2)
def summed_rows(rows: Any, values: Any, size: int) -> tuple[Any, Any]:
    """Each row once, with the sum of its values; `size` stands where there are fewer rows.

    Example:
        >>> summed_rows(jnp.array([2, 0, 2]), jnp.array([1.0, 2.0, 3.0]), 5)
        (Array([0, 2, 5], dtype=int32), Array([2., 4., 0.], dtype=float32))
    """
    rows = jnp.where(rows < size, rows, size).astype(jnp.int32)
    unique, places = jnp.unique(rows, return_inverse=True, size=rows.shape[0], fill_value=size)
    total = jax.ops.segment_sum(values, places.reshape(-1), num_segments=rows.shape[0])
    is_row = (unique < size).reshape(-1, *(1,) * (values.ndim - 1))
    return unique, jnp.where(is_row, total, 0)
