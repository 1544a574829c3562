"""Builds a variable of a given kind: its storage, its initial value, its place in the registry.

Which kind, and where, `creation` decides, or `Variable` itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax.backend import collectives, placement
from replicax.backend.mesh import ReplicaMesh
from replicax.backend.partition import Layout
from replicax.backend.shards import ShardLayout
from replicax.core import notices
from replicax.core.enums import VariableAggregation, VariableSynchronization
from replicax.core.errors import TraceError, VariableError
from replicax.core.typing import Device
from replicax.engine.protocols import StrategyLike
from replicax.engine.storage import Storage, stored
from replicax.engine.trace.frame import current_frame
from replicax.values.consistency import from_first_worker
from replicax.values.distributed import PerReplica
from replicax.values.operators import ArrayOperators, plain
from replicax.values.traced import TracedPerReplica
from replicax.variables.colocation import asked_primary
from replicax.variables.partitioning import NO_RULES, PartitionRules, partition_of
from replicax.variables.registry import register

V = TypeVar("V")
LayoutFor = Callable[[tuple[int, ...], Any, bool], ShardLayout | None]


def build(
    kind_of: Callable[[Storage], type[V]],
    *,
    initial_value: Any,
    trainable: bool | None,
    name: str | None,
    dtype: Any,
    synchronization: VariableSynchronization,
    aggregation: VariableAggregation,
    strategy: StrategyLike | None,
    mesh: ReplicaMesh | None = None,
    home: Device | None = None,
    partition_dimensions: Layout | None = None,
    partition_rules: PartitionRules = NO_RULES,
    layout_for: LayoutFor | None = None,
    storage_of: Callable[..., Storage] = Storage,
) -> V:
    """A variable on `mesh`, or one copy on `home`, or an undistributed one.

    Args:
        kind_of: The class of the variable that has a storage.
        initial_value: As given by the user, or one per replica.
        trainable: As given; None means yes, except for sync-on-read variables.
        name: As given.
        dtype: As given.
        synchronization: As given.
        aggregation: As given.
        strategy: The strategy that owns the variable, or None.
        mesh: The devices of the copies.
        home: The device of a single copy.
        partition_dimensions: As given.
        partition_rules: What holds where it was not.
        layout_for: Gives the way to split a variable over the replicas, or None, from its shape,
            its dtype and whether it is trainable; sync-on-read variables are never split, nor are
            those that are cut over logical devices.
        storage_of: Makes the storage.
    """
    name = "Variable" if name is None else name
    on_read = synchronization is VariableSynchronization.ON_READ
    value = _initial_value(initial_value, dtype, name)
    _check_properties(name, value.dtype, synchronization, aggregation, strategy)
    shape = tuple(value.shape)
    trainable = not on_read if trainable is None else bool(trainable)
    spec = partition_of(partition_dimensions, partition_rules, name, shape, mesh=mesh, home=home)
    layout = None
    if layout_for is not None and not on_read and spec is None:
        layout = layout_for(shape, np.dtype(value.dtype), trainable)
    storage = storage_of(
        name,
        shape,
        np.dtype(value.dtype),
        mesh=mesh,
        home=home,
        per_replica=on_read and mesh is not None,
        spec=spec,
        layout=layout,
    )
    variable: Any = type.__call__(  # not `Variable(...)`, which asks for the kind
        kind_of(storage),
        storage,
        strategy=strategy,
        trainable=trainable,
        synchronization=synchronization,
        aggregation=aggregation,
    )
    # State of no single variable belongs to a place, which has no name.
    variable._slot_of = getattr(asked_primary(), "name", None)
    frame = current_frame()
    if frame is not None:
        variable = frame.exchange(variable)[0]  # all variants of a trace create the same one
    _initialise(variable, value)
    register(variable)
    return variable


def stand_in(kind: type[V], variable: Any) -> V:
    """An undistributed variable of class `kind` that a trace uses in the place of `variable`."""
    storage = Storage(variable.name, variable.shape, variable.dtype)
    return type.__call__(
        kind,
        storage,
        strategy=None,
        trainable=variable.trainable,
        synchronization=variable.synchronization,
        aggregation=variable.aggregation,
    )


def _initial_value(initial_value: Any, dtype: Any, name: str) -> Any:
    """An array with a strong type: concrete wherever that is possible."""
    if isinstance(initial_value, PerReplica):
        initial_value = (
            initial_value._local
            if isinstance(initial_value, TracedPerReplica)
            else initial_value.values[0]  # of this worker; replica 0's comes in the end
        )
    if callable(initial_value) and not isinstance(initial_value, ArrayOperators):
        with jax.ensure_compile_time_eval():
            initial_value = initial_value()
    value = plain(initial_value)
    if isinstance(value, (list, tuple)) and any(
        isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value)
    ):
        value = jnp.asarray(value)
    value = placement.narrowed(value, f"the initial value of variable {name!r}")
    if jnp.issubdtype(value.dtype, jax.dtypes.extended):
        raise VariableError(
            f"the initial value of variable {name!r} is a random key of dtype {value.dtype}. Store "
            "jax.random.key_data(key), or use replicax.random.Generator."
        )
    if value.dtype.kind not in "biufcV" or (
        value.dtype.kind == "V" and not jnp.issubdtype(value.dtype, jnp.floating)
    ):
        raise VariableError(
            f"the initial value of variable {name!r} has dtype {value.dtype}; expected numbers."
        )
    return value if dtype is None else value.astype(_held_dtype(dtype, name))


def _held_dtype(dtype: Any, name: str) -> Any:
    """What `dtype` is in JAX, with a notice if that has fewer bits."""
    asked, held = np.dtype(dtype), jax.dtypes.canonicalize_dtype(dtype)
    if held != asked:
        notices.notify_once(
            ("fewer bits", asked),
            f"variable {name!r} of dtype {asked} holds {held}, as all arrays of JAX do unless "
            'jax.config.update("jax_enable_x64", True) is called first. Call it, or ask for '
            f"{held}.",
        )
    return held


def _check_properties(
    name: str,
    dtype: Any,
    synchronization: VariableSynchronization,
    aggregation: VariableAggregation,
    strategy: StrategyLike | None,
) -> None:
    for label, value, kind in (
        ("synchronization", synchronization, VariableSynchronization),
        ("aggregation", aggregation, VariableAggregation),
    ):
        if not isinstance(value, kind):
            raise VariableError(
                f"{label} of variable {name!r} is {value!r}; expected one of "
                f"{[f'{kind.__name__}.{member.name}' for member in kind]}."
            )
    if synchronization is VariableSynchronization.NONE and strategy is not None:
        raise VariableError(
            f"variable {name!r} has synchronization=NONE, which no strategy can keep consistent. "
            "Use AUTO, ON_WRITE or ON_READ, or create it outside the scope."
        )
    if aggregation is VariableAggregation.MEAN and not jnp.issubdtype(dtype, jnp.inexact):
        raise VariableError(
            f"variable {name!r} has aggregation=MEAN and dtype {np.dtype(dtype)}, which cannot "
            "hold a mean. Use a floating dtype, or aggregation SUM or ONLY_FIRST_REPLICA."
        )


def _initialise(variable: Any, value: Any) -> None:
    storage = variable._storage
    frame = current_frame()
    if not isinstance(value, Tracer):
        if storage.array is None:
            value = from_first_worker(value, storage.name, storage.mesh)
            with jax.ensure_compile_time_eval():
                storage.set_value(value)
        if frame is not None:
            frame.created.append((variable, None))
        return
    if frame is None or not frame.is_own_level():
        raise TraceError(
            f"variable {variable.name!r} is created inside jax.jit, lax.scan, lax.cond or a "
            "similar transformation, from a value computed there. Create it outside, or pass a "
            "function as initial_value: Variable(lambda: jnp.zeros(...))."
        )
    value = jax.lax.stop_gradient(value)
    strategy = variable.strategy
    if frame.in_replica and strategy is not None and strategy.num_replicas_in_sync > 1:
        value = collectives.from_first_replica(value)
    frame.created.append((variable, value))
    if storage.layout is not None:
        value = stored(storage, value, frame)
    elif storage.per_replica and not frame.in_replica:
        value = jnp.broadcast_to(value[None], storage.global_shape)
    frame.adopt(storage, value)
