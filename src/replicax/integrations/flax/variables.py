"""NNX variables that keep their value in a variable of a strategy.

NNX keeps the value of a variable in one slot, and reads and writes it there, in all that it does.
Here that slot is a property. For a variable that was distributed it has a variable of ours, which
is read and assigned instead, so the engine does what the context asks for. The NNX variable stays
the object it was, and of the type it was. What NNX makes of it (by ``merge``, ``grad``, ``clone``)
is a plain variable again.

==========================  ==============================================================
in NNX                      in the strategy
==========================  ==============================================================
``Param``, optimizer state  mirrored; in a step every replica must write the same value
``MetricState``             sync on read, summed
random keys                 mirrored, as the numbers they are made of
``RngCount``                sync on read; each replica counts from a start of its own, so
                            its random numbers are its own. Replica 0 has those of one
                            device
all others                  sync on read: floats are averaged (statistics of BatchNorm);
                            of anything else replica 0's is read
==========================  ==============================================================
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer

from replicax.backend import placement
from replicax.core.enums import VariableAggregation, VariableSynchronization
from replicax.core.errors import VariableError
from replicax.engine.contexts import stack
from replicax.engine.trace.frame import current_frame
from replicax.engine.trace.overrides import drop_override
from replicax.integrations.flax import internals
from replicax.variables.conversion import converted
from replicax.variables.creation import layout_like
from replicax.variables.variable import Variable

_GOLDEN = 2654435769  # its multiples modulo 2**32 are far apart, however many there are


@dataclasses.dataclass(slots=True)
class _StrategyValue:
    """What is in the slot of an NNX variable whose value lives in a strategy.

    Attributes:
        variable: Has the value.
        key_impl: For a random key, whose numbers the variable has: its kind.
        primary: The variable that this one is a slot of, or None.
        pending: For a mirrored variable in an eager run.
    """

    variable: Variable
    key_impl: Any = None
    primary: Variable | None = None
    pending: _Pending | None = None


class _Pending:
    """What the replicas of one eager run assign to a mirrored variable.

    No replica waits for the others where it assigns: NNX assigns in the middle of its own work on
    a module, which the others share. So the first value counts when all have assigned it.

    Args:
        variable: The variable.
        context: The context of some replica of the run.
    """

    def __init__(self, variable: Variable, context: Any) -> None:
        mesh = variable.strategy.extended.mesh
        self.variable = variable
        self.context = context
        self._values: dict[int, list[Any]] = {i: [] for i in mesh.local_replicas}
        self._read: dict[int, weakref.ref[Any]] = {}

    @property
    def is_complete(self) -> bool:
        """Whether all replicas have assigned the same number of values."""
        return not any(self._values.values())

    def read(self, replica_id: int) -> Any:
        """The value that a replica sees: the last one that it has assigned."""
        values = self._values[replica_id]
        value = values[-1] if values else self.variable.read_value()
        self._read[replica_id] = weakref.ref(value)
        return value

    def assign(self, replica_id: int, value: Any) -> None:
        """Notes a value, and assigns it if this replica is the last one to bring it."""
        read = self._read.get(replica_id)
        if read is not None and read() is value and not self._values[replica_id]:
            return  # NNX's transformations write back what they did not change
        self._values[replica_id].append(value)
        if not all(self._values.values()):
            return
        values = [values.pop(0) for values in self._values.values()]
        if not placement.are_same(values):
            raise VariableError(
                f"NNX variable {self.variable.name!r} is mirrored, and the replicas assign "
                f"different values to it: {_shown(values[0])} and {_shown(values[-1])}. Reduce "
                "what they are computed from first: optimizer.update sums gradients, and "
                "replicax.get_replica_context().all_reduce reduces anything."
            )
        with self.variable.strategy.extended.creation_scope():
            self.variable.assign(values[0])

    def require_complete(self) -> None:
        """Raises if some replicas have assigned a value and others have not.

        Raises:
            VariableError: If so.
        """
        if self.is_complete:
            return
        did = [replica_id for replica_id, values in self._values.items() if values]
        name, self._values = self.variable.name, {i: [] for i in self._values}
        raise VariableError(
            f"NNX variable {name!r} is mirrored, and in the last run only the replicas {did} "
            "assigned it. Assign it on all replicas, or on none."
        )


def _shown(value: Any) -> str:
    return f"{' '.join(str(np.asarray(value)).split()):.40}"


def variable_in(variable: Any) -> Variable | None:
    """The variable of a strategy that has the value of an NNX variable; None for a plain one."""
    held = internals.stored(variable)
    return held.variable if type(held) is _StrategyValue else None


def install() -> None:
    """Puts what is below where NNX keeps the value of a variable."""
    internals.replace_slots(_get_value, _set_value, _get_trace_state, _set_trace_state)


def _get_value(variable: Any) -> Any:
    held = internals.stored(variable)
    return _read(variable, held) if type(held) is _StrategyValue else held


def _set_value(variable: Any, value: Any) -> None:
    held = internals.stored_or_none(variable)
    if type(held) is _StrategyValue:
        _assign(variable, held, value)
    else:
        internals.store(variable, value)


def _get_trace_state(variable: Any) -> Any:
    if variable_in(variable) is not None:
        return internals.here()  # the engine knows where it may be assigned
    return internals.trace_state(variable)


def _set_trace_state(variable: Any, value: Any) -> None:
    internals.set_trace_state(variable, value)


def _read(owner: nnx.Variable[Any], held: _StrategyValue) -> Any:
    context = _eager_replica(held)
    if context is not None:
        value = _pending(held, context).read(context.replica_id_in_sync_group)
    else:
        value = held.variable.read_value()
    if held.key_impl is not None:
        return jax.random.wrap_key_data(value, impl=held.key_impl)
    return value + offset if (offset := _offset(owner, held.variable)) is not None else value


def _assign(owner: nnx.Variable[Any], held: _StrategyValue, value: Any) -> None:
    variable = held.variable
    if held.key_impl is not None:
        value = jax.random.key_data(value)
    elif (offset := _offset(owner, variable)) is not None:
        value = value - offset
    context = _eager_replica(held)
    if context is not None:
        _pending(held, context).assign(context.replica_id_in_sync_group, value)
    elif _is_another_kind(value, variable):
        held.variable = _variable_for(owner, value, variable.strategy, variable.name, held.primary)
    elif _is_mirrored(variable) and _in_replica_of(variable):
        # Not by the aggregation: the engine checks that all replicas have the same value.
        drop_override(variable)
        value = converted(value, variable._storage, "assign")
        variable._apply_to_all("assign", value)  # pyright: ignore[reportAttributeAccessIssue]
    else:
        variable.assign(value)


def _offset(owner: nnx.Variable[Any], variable: Variable) -> Any:
    """What the count of this replica is ahead of the value in the variable; None for nothing."""
    if not isinstance(owner, nnx.RngCount) or not _in_replica_of(variable):
        return None
    if variable.strategy.num_replicas_in_sync == 1:
        return None
    replica_id = stack.top().replica_context.replica_id_in_sync_group  # pyright: ignore
    return jnp.asarray(replica_id).astype(variable.dtype) * np.uint32(_GOLDEN)


def _in_replica_of(variable: Variable) -> bool:
    entry = stack.top()
    if entry is None or entry.mode is not stack.Mode.REPLICA:
        return False
    return entry.strategy is variable.strategy


def can_be_distributed(variable: nnx.Variable[Any], name: str) -> bool:
    """Whether the value of a plain variable is one array of numbers, or of keys, that exists.

    Raises:
        VariableError: If NNX keeps the value in a `Ref`.
    """
    if variable.ref or variable.hijax:
        raise VariableError(
            f"NNX variable {name!r} was made with ref=True or hijax=True: JAX has its value, so a "
            "strategy cannot have copies of it. Leave both out, and do not call nnx.use_hijax."
        )
    value = internals.stored(variable)
    if isinstance(value, Tracer):
        return False
    if isinstance(value, jax.Array):
        return True
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.kind in "biufc"
    return isinstance(value, (bool, int, float, complex))


def distribute_variable(
    variable: nnx.Variable[Any], strategy: Any, name: str, primary: Variable | None
) -> None:
    """Gives `variable` its copies on the replicas, in the scope of `strategy`.

    Args:
        variable: A plain variable that `can_be_distributed`; it stays the same object.
        strategy: What has the copies.
        name: What to call it: its path in the model.
        primary: The parameter that it is the state of an optimizer for, or None.
    """
    value = internals.stored(variable)
    key_impl = None
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        key_impl, value = jax.random.key_impl(value), jax.random.key_data(value)
    made = _variable_for(variable, value, strategy, name, primary, is_key=key_impl is not None)
    internals.store(variable, _StrategyValue(made, key_impl, primary))


def _variable_for(
    variable: Any,
    value: Any,
    strategy: Any,
    name: str,
    primary: Variable | None,
    *,
    is_key: bool = False,
) -> Variable:
    kind = type(variable)
    value = jnp.asarray(value) if isinstance(value, (bool, int, float, complex)) else value
    synchronization, aggregation = _kind(kind, value.dtype, is_key=is_key)
    layout = _layout_of(variable, strategy)
    place: Any = contextlib.nullcontext()
    if issubclass(kind, nnx.OptState):
        layout = layout_like(primary, tuple(value.shape), strategy)
    if primary is not None:
        place = strategy.extended.colocate_vars_with(primary)
    with strategy.extended.creation_scope(), place:
        made = Variable(
            value,
            trainable=issubclass(kind, nnx.Param),
            name=name,
            synchronization=synchronization,
            aggregation=aggregation,
            **layout,
        )
        if aggregation is VariableAggregation.SUM and np.any(np.asarray(value)):
            made.assign(value)  # so that a read gives it once, and not once for each replica
    return made


def _kind(
    kind: type, dtype: Any, *, is_key: bool
) -> tuple[VariableSynchronization, VariableAggregation]:
    if is_key or issubclass(kind, (nnx.Param, nnx.OptState)):
        return VariableSynchronization.ON_WRITE, VariableAggregation.NONE
    aggregation = VariableAggregation.ONLY_FIRST_REPLICA
    if issubclass(kind, nnx.metrics.MetricState):
        aggregation = VariableAggregation.SUM
    elif jnp.issubdtype(dtype, jnp.inexact):
        aggregation = VariableAggregation.MEAN
    return VariableSynchronization.ON_READ, aggregation


def _layout_of(variable: Any, strategy: Any) -> dict[str, Any]:
    """The layout that NNX's own metadata asks for, if it names axes of the strategy."""
    mesh = strategy.extended.mesh
    if not variable.get_metadata("out_sharding", None) or mesh.num_logical_devices == 1:
        return {}
    spec = internals.partition_spec(variable)
    named = jax.tree.leaves(tuple(spec))
    if not named or not set(mesh.logical_axes).issuperset(named):
        return {}
    return {"partition_dimensions": spec}


def rename(variable: nnx.Variable[Any], name: str) -> None:
    """Calls a variable of a module that has become part of a larger one by its path in that.

    A rule for the new name may cut a mirrored variable otherwise than it is cut.
    """
    held = internals.stored(variable)
    old, short = held.variable, held.variable.name
    if not name.endswith(f"/{short}"):
        return
    old._storage.name = name
    rules = old.strategy.extended._partition_rules
    if _is_mirrored(old) and rules.find(name) != rules.find(short):
        held.variable = _variable_for(
            variable,
            old.read_value(),
            old.strategy,
            name,
            held.primary,
            is_key=held.key_impl is not None,
        )


def _is_another_kind(value: Any, variable: Variable) -> bool:
    """Whether code outside of any step assigns a value that the variable cannot have.

    NNX lets a variable change its shape: ``split_rngs`` and changes of a model do.
    """
    if not isinstance(value, (jax.Array, np.ndarray)) or isinstance(value, Tracer):
        return False
    if tuple(value.shape) == variable.shape and value.dtype == variable.dtype:
        return False
    entry = stack.top()
    return current_frame() is None and (entry is None or entry.mode is stack.Mode.SCOPE)


def _is_mirrored(variable: Variable) -> bool:
    return variable.synchronization is not VariableSynchronization.ON_READ


def _eager_replica(held: _StrategyValue) -> Any:
    """The context of the replica that runs eagerly and shares a mirrored variable; or None."""
    if held.pending is not None and held.pending.context._ended:
        pending, held.pending = held.pending, None
        pending.require_complete()
    variable = held.variable
    if current_frame() is not None or not _in_replica_of(variable) or not _is_mirrored(variable):
        return None
    shared = variable.strategy.num_replicas_in_sync > 1
    return stack.top().replica_context if shared else None  # pyright: ignore


def _pending(held: _StrategyValue, context: Any) -> _Pending:
    if held.pending is None:
        held.pending = _Pending(held.variable, context)
    return held.pending
