"""Creates variables: which kind, with which initial value, seen by which creators."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax.backend import collectives, placement
from replicax.backend.mesh import ReplicaMesh
from replicax.backend.partition import Layout
from replicax.backend.shards import ShardLayout
from replicax.context import stack
from replicax.core.enums import VariableAggregation, VariableSynchronization
from replicax.core.errors import TraceError, VariableError
from replicax.core.typing import Device
from replicax.execution.frame import current_frame
from replicax.values.distributed import PerReplica
from replicax.values.operators import plain
from replicax.values.traced import TracedPerReplica
from replicax.variables.central import CentralVariable
from replicax.variables.colocation import asked_devices, asked_primary, colocated_on
from replicax.variables.consistency import from_first_worker
from replicax.variables.mirrored import MirroredVariable
from replicax.variables.partitioning import NO_RULES, PartitionRules, partition_of
from replicax.variables.plain import PlainVariable
from replicax.variables.registry import register
from replicax.variables.sharded import ShardedVariable, stored
from replicax.variables.storage import Storage
from replicax.variables.sync_on_read import SyncOnReadVariable
from replicax.variables.variable import Variable, provide_creation

Creator = Callable[..., Variable]
LayoutFor = Callable[[tuple[int, ...], Any, bool], ShardLayout | None]

_creators: contextvars.ContextVar[tuple[Creator, ...]] = contextvars.ContextVar(
    "replicax_variable_creators", default=()
)
_numbers = itertools.count()


@contextlib.contextmanager
def variable_creator_scope(variable_creator: Creator) -> Iterator[None]:
    """Lets `variable_creator` see, change or replace every variable creation inside.

    It is called as ``variable_creator(next_creator, **kwargs)``, the innermost
    scope first, once per variable however many replicas there are, and usually
    ends with ``return next_creator(**kwargs)``.

    Args:
        variable_creator: The function.

    Returns:
        A context manager.

    Example:
        >>> import replicax as rx
        >>> def double(next_creator, **kwargs):
        ...     kwargs["initial_value"] = 2 * kwargs["initial_value"]
        ...     return next_creator(**kwargs)
        >>> with rx.variable_creator_scope(double):
        ...     v = rx.Variable(3.0)
        >>> v.numpy()
        array(6., dtype=float32)
    """
    token = _creators.set((*_creators.get(), variable_creator))
    try:
        yield
    finally:
        _creators.reset(token)


def create_variable(
    initial_value: Any = None,
    trainable: bool | None = None,
    *,
    name: str | None = None,
    dtype: Any = None,
    synchronization: VariableSynchronization = VariableSynchronization.AUTO,
    aggregation: VariableAggregation = VariableAggregation.NONE,
    partition_dimensions: Layout | None = None,
) -> Variable:
    """What ``Variable(...)`` does."""
    if initial_value is None:
        raise VariableError(
            "Variable needs an initial_value: an array, a number or a function that returns one."
        )
    options = {
        "trainable": trainable,
        "name": name,
        "dtype": dtype,
        "synchronization": synchronization,
        "aggregation": aggregation,
    }
    if partition_dimensions is not None:  # creators that know nothing of it still serve others
        options["partition_dimensions"] = partition_dimensions
    strategy = stack.get_strategy()
    # Asked for here: in an eager run the creation itself happens on another thread.
    place = asked_devices(), asked_primary()
    create = functools.partial(_create_once, _creators.get(), place, strategy, options)
    entry = stack.top()
    if entry is None or entry.mode is not stack.Mode.REPLICA:
        return create(initial_value)
    return entry.replica_context._together("the creation of a variable", create, (initial_value,))


def _create_once(
    creators: tuple[Creator, ...],
    place: tuple[tuple[Device, ...] | None, Any],
    strategy: Any,
    options: dict[str, Any],
    initial_value: Any,
) -> Variable:
    """Runs the creators, innermost first, and at the end the strategy's own."""
    creator: Creator = strategy.extended.create_variable
    for outer in creators:
        creator = functools.partial(outer, creator)
    with colocated_on(*place):
        return creator(initial_value=initial_value, **options)


provide_creation(create_variable)


def build_variable(
    *,
    initial_value: Any,
    trainable: bool | None,
    name: str | None,
    dtype: Any,
    synchronization: VariableSynchronization,
    aggregation: VariableAggregation,
    strategy: Any,
    mesh: ReplicaMesh | None = None,
    home: Device | None = None,
    partition_dimensions: Layout | None = None,
    partition_rules: PartitionRules = NO_RULES,
    layout_for: LayoutFor | None = None,
) -> Variable:
    """A variable on `mesh`, or one copy on `home`, or an undistributed one.

    Args:
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
            its dtype and whether it is trainable; sync-on-read variables are never split.
    """
    name = "Variable" if name is None else name
    on_read = synchronization is VariableSynchronization.ON_READ
    value = _initial_value(initial_value, dtype, name)
    _check_properties(name, value.dtype, synchronization, aggregation, strategy)
    shape = tuple(value.shape)
    trainable = not on_read if trainable is None else bool(trainable)
    layout = None
    if layout_for is not None and not on_read:
        layout = layout_for(shape, np.dtype(value.dtype), trainable)
    storage = Storage(
        name,
        shape,
        np.dtype(value.dtype),
        mesh=mesh,
        home=home,
        per_replica=on_read and mesh is not None,
        spec=partition_of(partition_dimensions, partition_rules, name, shape, mesh=mesh, home=home),
        layout=layout,
    )
    kind = PlainVariable if home is None else CentralVariable
    if mesh is not None:
        kind = SyncOnReadVariable if on_read else MirroredVariable
    if layout is not None:
        kind = ShardedVariable
    variable = kind(
        storage,
        strategy=None if kind is PlainVariable else strategy,
        trainable=trainable,
        synchronization=synchronization,
        aggregation=aggregation,
    )
    frame = current_frame()
    if frame is not None:
        variable = frame.exchange(variable)[0]  # all variants of a trace create the same one
    _initialise(variable, value)
    register(variable)
    return variable


def _initial_value(initial_value: Any, dtype: Any, name: str) -> Any:
    """An array with a strong type: concrete wherever that is possible."""
    if isinstance(initial_value, PerReplica):
        initial_value = (
            initial_value._local
            if isinstance(initial_value, TracedPerReplica)
            else initial_value.values[0]  # of this worker; replica 0's comes in the end
        )
    if callable(initial_value) and not isinstance(initial_value, Variable):
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
    return value if dtype is None else value.astype(jax.dtypes.canonicalize_dtype(dtype))


def _check_properties(
    name: str,
    dtype: Any,
    synchronization: VariableSynchronization,
    aggregation: VariableAggregation,
    strategy: Any,
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


def _initialise(variable: Variable, value: Any) -> None:
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


def creation_number() -> int:
    """Counts creations, so that variables have an order that garbage collection cannot change."""
    return next(_numbers)
