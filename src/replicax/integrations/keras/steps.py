"""One step of `fit`, `evaluate` or `predict` on all replicas.

Keras asks a model for a function that takes the state and an iterator. Ours takes a batch from
the iterator, divides it among the replicas and runs Keras's own step on each, as one compiled
program. The state stays in the variables of the strategy, so the lists that Keras hands around
are empty.

The weights and the state of the optimizer that a step returns are the same on all replicas,
because gradients are summed inside of it (`updates`). Statistics and metrics are each replica's
own; the figures for the logs are combined in the same program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax import lax

from replicax.core import recording
from replicax.core.enums import VariableAggregation
from replicax.engine.functions.function import function
from replicax.integrations.keras import shares
from replicax.integrations.keras.adapters import GlobalBatch
from replicax.integrations.keras.variables import StrategyVariable, is_on_read
from replicax.values.distributed import DistributedValues, Mirrored, PerReplica

NO_STATE = {"train": ([], [], [], []), "test": ([], [], []), "predict": ([], [])}
"""What Keras gets instead of the values of its variables."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """How many examples a batch has.

    Attributes:
        total: On all replicas.
        is_lent: Whether some replica has none, and is lent a row to compute with.
    """

    total: int
    is_lent: bool


def step_function(model: Any, strategy: Any, kind: str) -> Callable[..., Any]:
    """What Keras calls for every step (or several): ``(state, iterator) -> (outputs, state)``.

    Args:
        model: The model.
        strategy: Whose replicas compute.
        kind: "train", "test" or "predict".
    """
    is_compiled = not model.run_eagerly and model.jit_compile
    replica_step = _REPLICA_STEPS[kind]

    def one(batch: Any, total: int, is_lent: bool) -> Any:
        return replica_step(model, Sizes(total, is_lent), [batch])

    def many(batches: list[Any], total: int, is_lent: bool) -> Any:
        return replica_step(model, Sizes(total, is_lent), batches)

    run_one, run_many = (function(one), function(many)) if is_compiled else (one, many)

    def take(_: Any, iterator: Iterator[Any]) -> Any:
        batches = [next_divided(strategy, iterator)]
        while len(batches) < model.steps_per_execution:
            try:
                batches.append(next_divided(strategy, iterator))
            except StopIteration:
                break
        if is_compiled and len(batches) > 1 and _are_alike(batches):
            values = [batch for batch, _ in batches]
            sizes = batches[0][1]
            outputs = strategy.run(run_many, args=(values, sizes.total, sizes.is_lent))
            return _plain(outputs), NO_STATE[kind]
        results = [
            _plain(strategy.run(run_one, args=(batch, sizes.total, sizes.is_lent)))
            for batch, sizes in batches
        ]
        outputs = results[-1]
        if kind == "predict" and len(results) > 1:
            outputs = jax.tree.map(lambda *parts: jnp.concatenate(parts), *results)
        return outputs, NO_STATE[kind]

    return take


def next_divided(strategy: Any, iterator: Iterator[Any]) -> tuple[Any, Sizes]:
    """The next batch of Keras's iterator, divided among the replicas, and its sizes."""
    told = recording.recorder
    before = None if told is None else told.enter(recording.INPUT)
    if told is None or before is None:
        return divided(strategy, next(iterator))
    total = None
    try:
        batch, sizes = divided(strategy, next(iterator))
        total = sizes.total
    finally:
        told.leave_input(before, total)
    return batch, sizes


def divided(strategy: Any, batch: Any) -> tuple[Any, Sizes]:
    """A batch, divided among the replicas, and its sizes."""
    leaves, structure = jax.tree.flatten(batch)
    if any(isinstance(leaf, GlobalBatch) for leaf in leaves):
        leaves = [leaf.value for leaf in leaves]
    else:
        leaves = strategy.distribute_batch([_for_host(leaf) for leaf in leaves])
    return jax.tree.unflatten(structure, leaves), _sizes(leaves)


def _is_distributed(leaf: Any) -> bool:
    return isinstance(leaf, DistributedValues)


def _for_host(leaf: Any) -> Any:
    return leaf if isinstance(leaf, (np.ndarray, jax.Array)) else np.asarray(leaf)


def _sizes(leaves: list[Any]) -> Sizes:
    first = leaves[0]
    if not isinstance(first, PerReplica):
        rows = first.shape[0]
        return Sizes(rows, is_lent=rows == 0)
    rows = [shape[0] for shape in first.shapes]
    return Sizes(sum(rows), is_lent=min(rows) == 0)


def _are_alike(batches: list[tuple[Any, Sizes]]) -> bool:
    """Whether one loop can go over these batches."""

    def kind(batch: Any) -> Any:
        leaves, structure = jax.tree.flatten(batch, is_leaf=_is_distributed)
        shapes = [
            (leaf.shapes if isinstance(leaf, PerReplica) else leaf.shape, leaf.dtype)
            for leaf in leaves
        ]
        return structure, shapes

    first = kind(batches[0][0])
    return all(kind(batch) == first for batch, _ in batches[1:])


def _plain(outputs: Any) -> Any:
    """What the replicas returned, all the same, as ordinary arrays."""

    def plain(leaf: Any) -> Any:
        if isinstance(leaf, Mirrored):
            return leaf.read_value()
        return leaf.values[0] if isinstance(leaf, PerReplica) else leaf

    return jax.tree.map(plain, outputs, is_leaf=_is_distributed)


# -- on a replica -----------------------------------------------------------------------------


def _train(model: Any, sizes: Sizes, batches: list[Any]) -> Any:
    groups = [
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    ]
    return _step(model, model.train_step, groups, sizes, batches)


def _test(model: Any, sizes: Sizes, batches: list[Any]) -> Any:
    groups = [
        model.trainable_variables,
        model.non_trainable_variables,
        model.metrics_variables,
    ]
    return _step(model, model.test_step, groups, sizes, batches)


def _step(
    model: Any, step: Callable[..., Any], groups: list[list[Any]], sizes: Sizes, batches: list[Any]
) -> Any:
    """Runs Keras's step on each batch, and gives the logs after the last."""
    before = _values(groups)
    logs, after, share = _all_steps(step, before, sizes, batches)
    _write(groups, before, after, share)
    return _whole_logs(model, logs, share)


def _all_steps(
    step: Callable[..., Any], state: Any, sizes: Sizes, batches: list[Any]
) -> tuple[Any, Any, shares.ReplicaShare]:
    """One step, or a loop of them in one program."""
    if len(batches) == 1:
        return _one_step(step, state, sizes, batches[0])
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)
    seen: list[shares.ReplicaShare] = []

    def body(state: Any, batch: Any) -> tuple[Any, Any]:
        logs, new, share = _one_step(step, state, sizes, batch)
        seen.append(share)
        return jax.tree.map(lambda old, new: jnp.asarray(new, old.dtype), state, new), logs

    state, logs = lax.scan(body, state, stacked)
    return jax.tree.map(lambda leaf: leaf[-1], logs), state, seen[-1]


def _one_step(
    step: Callable[..., Any], state: Any, sizes: Sizes, batch: Any
) -> tuple[Any, Any, shares.ReplicaShare]:
    batch, share = _own_part(batch, sizes)
    with shares.of_step(share):
        logs, new = step(state, batch)
    new = tuple(
        [old if value is None else value for old, value in zip(olds, values, strict=True)]
        for olds, values in zip(state, new, strict=True)
    )
    return logs, new, share


def _predict(model: Any, sizes: Sizes, batches: list[Any]) -> Any:
    groups = [model.trainable_variables, model.non_trainable_variables]
    state = before = _values(groups)
    outputs, share = [], None
    for batch in batches:
        own, share = _own_part(batch, sizes)
        with shares.of_step(share):
            output, values = model.predict_step(state, own)
        state = (state[0], values)
        if share.is_empty:
            output = jax.tree.map(lambda leaf: leaf[:0], output)
        outputs.append(shares.replica_context().all_gather(output, axis=0))
    _write(groups[1:], before[1:], state[1:], share)
    if len(outputs) == 1:
        return outputs[0]
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *outputs)


_REPLICA_STEPS = {"train": _train, "test": _test, "predict": _predict}


def _own_part(batch: Any, sizes: Sizes) -> tuple[Any, shares.ReplicaShare]:
    """The replica's part of a batch; one without examples computes with another's first row."""
    rows = jax.tree.leaves(batch)[0].shape[0]
    share = shares.ReplicaShare(rows, sizes.total)
    if sizes.is_lent:
        context = shares.replica_context()
        first = jax.tree.map(lambda leaf: leaf[:1], batch)
        lent = context.all_gather(first, axis=0)
        if share.is_empty:
            batch = jax.tree.map(lambda leaf: leaf[:1], lent)
    return batch, share


def _values(groups: list[list[Any]]) -> tuple[list[Any], ...]:
    return tuple([variable.value for variable in group] for group in groups)


def _write(groups: list[list[Any]], before: Any, after: Any, share: Any) -> None:
    """Stores what a step has changed: statistics in each replica, weights in all together."""
    together: list[tuple[Any, Any]] = []
    for group, olds, values in zip(groups, before, after, strict=True):
        for variable, old, value in zip(group, olds, values, strict=True):
            if value is old:
                continue
            held = variable.replicax_variable
            value = jnp.asarray(value, held.dtype)
            counts = held.aggregation is VariableAggregation.ONLY_FIRST_REPLICA
            if not is_on_read(variable):
                together.append((held, value))
            elif counts or not share.is_empty:
                held.assign(value)
    if together:
        variables, values = zip(*together, strict=True)
        variables[0].strategy.extended.assign_together(variables, values)


# -- logs -------------------------------------------------------------------------------------


def _whole_logs(model: Any, logs: dict[str, Any], share: shares.ReplicaShare) -> dict[str, Any]:
    """The figures for the whole batch: metrics from the state of all replicas, means of others."""
    context = shares.replica_context()
    metrics = model.metrics_variables
    named = set(_names_of_metrics(model))
    others = {
        name: jnp.asarray(value) * share.weight
        if not share.is_empty
        else jnp.zeros_like(jnp.asarray(value) * 1.0)
        for name, value in logs.items()
        if name not in named
    }
    summed = [v for v in metrics if v.replicax_variable.aggregation is VariableAggregation.SUM]
    values, others = context.all_reduce("SUM", ([v.value for v in summed], others))
    return context.merge_call(_figures, args=(model, list(logs), summed, values, others))


def _names_of_metrics(model: Any) -> Any:
    return model.get_metrics_result().keys()


def _figures(
    strategy: Any,
    model: Any,
    names: list[str],
    summed: list[StrategyVariable],
    values: list[Any],
    others: dict[str, Any],
) -> dict[str, Any]:
    """The logs of all replicas, in cross-replica context."""
    del strategy
    mapping = [(v, _as_array(value)) for v, value in zip(summed, values, strict=True)]
    with keras.StatelessScope(state_mapping=mapping):
        figures = model.get_metrics_result()
    figures = {**{name: _as_array(value) for name, value in others.items()}, **figures}
    return {name: jnp.asarray(figures[name]) for name in names}


def _as_array(value: Any) -> Any:
    return value.read_value() if isinstance(value, Mirrored) else jnp.asarray(value)
