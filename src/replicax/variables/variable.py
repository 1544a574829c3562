"""`Variable`: state that a program reads and assigns, whatever runs the program.

This class says what a variable offers and where a read or an assignment goes: to
the frame of a trace, or to the storage. What a copy, a read across replicas or an
assignment in a replica means, the subclasses say (`mirrored`, `sync_on_read`); a variable without a
strategy is none of them.
"""

from __future__ import annotations

import inspect
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from replicax.backend import partition, workers
from replicax.core import notices
from replicax.core.enums import VariableAggregation, VariableSynchronization
from replicax.core.errors import StaleReadError, VariableError
from replicax.core.nest import NestLeaf
from replicax.core.typing import Device
from replicax.engine.contexts import stack
from replicax.engine.protocols import StrategyLike
from replicax.engine.storage import Storage, exclusively
from replicax.engine.trace import epoch
from replicax.engine.trace.frame import Frame, current_frame
from replicax.engine.trace.overrides import drop_override, override_of
from replicax.jax_internals.traces import is_batching, is_staging
from replicax.values.distributed import register_as_array
from replicax.values.operators import AssignableOperators
from replicax.variables import creators
from replicax.variables.construction import build
from replicax.variables.conversion import converted

Combine = Callable[[Any, Any], Any]

ASSIGN: Combine = lambda old, new: new  # noqa: E731
COMBINES: dict[str, Combine] = {
    "assign": ASSIGN,
    "assign_add": operator.add,
    "assign_sub": operator.sub,
}


class _CreateByContext(type):
    """Makes ``Variable(...)`` create whatever kind of variable the context asks for."""

    if not TYPE_CHECKING:  # a type checker takes the signature of Variable.__init__

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if cls is Variable:
                return creators.create(_plain_variable, *args, **kwargs)
            return super().__call__(*args, **kwargs)


@register_as_array
class Variable(AssignableOperators, NestLeaf, metaclass=_CreateByContext):
    """A value that can be assigned.

    Outside a strategy's scope an ordinary variable, with one copy; inside, the strategy decides
    how many copies there are and how they are kept together. It works as an
    array in operators, in ``jax.numpy`` and ``jax.nn``, and as an argument of
    ``jax.jit`` and ``jax.vmap``.

    Args:
        initial_value: An array, a number, a nested list of numbers, or a
            function that returns one.
        trainable: Whether gradients are usually taken with respect to it.
        name: A name for messages and checkpoints.
        dtype: The dtype; that of the initial value if None.
        synchronization: When copies are brought together.
        aggregation: How updates (or copies, on read) are combined.
        partition_dimensions: Into how many pieces each dim is cut, over the logical devices
            of each replica; or a ``jax.sharding.PartitionSpec`` over the axes ``logical_0``,
            ``logical_1`` and so on. If None, what the rules of the strategy say.

    Example:
        >>> import replicax as rx
        >>> v = rx.Variable(1.0)
        >>> v.assign_add(2.0).numpy()
        array(3., dtype=float32)
        >>> with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        ...     w = rx.Variable([1.0, 2.0], aggregation=rx.VariableAggregation.SUM)
        >>> (w * 2).sum()
        Array(6., dtype=float32)
    """

    __slots__ = (
        "__weakref__",
        "_aggregation",
        "_slot_of",
        "_storage",
        "_strategy",
        "_synchronization",
        "_trainable",
    )

    __signature__: ClassVar[inspect.Signature]
    _reads_rows: ClassVar[bool] = False  # whether it can read some of its rows by themselves
    _storage: Storage

    if TYPE_CHECKING:

        def __init__(
            self,
            initial_value: ArrayLike | Sequence[Any] | Callable[[], Any] | None = None,
            trainable: bool | None = None,
            *,
            name: str | None = None,
            dtype: DTypeLike | None = None,
            synchronization: VariableSynchronization = VariableSynchronization.AUTO,
            aggregation: VariableAggregation = VariableAggregation.NONE,
            partition_dimensions: partition.Layout | None = None,
        ) -> None: ...

    def _set_up(
        self,
        storage: Storage,
        *,
        strategy: StrategyLike | None,
        trainable: bool,
        synchronization: VariableSynchronization,
        aggregation: VariableAggregation,
    ) -> None:
        """What the constructors of subclasses do."""
        self._storage = storage
        self._strategy = strategy
        self._trainable = trainable
        self._slot_of: str | None = None  # the name of the variable that it was created for
        self._synchronization = synchronization
        self._aggregation = aggregation
        weakref.finalize(self, _free, storage).atexit = False

    if not TYPE_CHECKING:
        __init__ = _set_up

    # -- what it is --------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name given at creation, or ``Variable``."""
        return self._storage.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return self._storage.shape

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the value."""
        return self._storage.dtype

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape))

    @property
    def trainable(self) -> bool:
        """Whether gradients are usually taken with respect to it."""
        return self._trainable

    @property
    def synchronization(self) -> VariableSynchronization:
        """When copies are brought together."""
        return self._synchronization

    @property
    def aggregation(self) -> VariableAggregation:
        """How updates or copies are combined."""
        return self._aggregation

    @property
    def strategy(self) -> Any:
        """The strategy that created it, or None."""
        return self._strategy

    @property
    def distribute_strategy(self) -> Any:
        """The documented name of `strategy`."""
        return self._strategy

    @property
    def partition_dimensions(self) -> tuple[int, ...]:
        """Into how many pieces each dim is cut, over the logical devices of each replica.

        Example:
            >>> import replicax as rx
            >>> with rx.MirroredStrategy(logical_devices=4).scope():
            ...     w = rx.Variable([[1.0], [2.0], [3.0], [4.0]], partition_dimensions=[4, 1])
            >>> w.partition_dimensions, w.numpy().shape
            ((4, 1), (4, 1))
        """
        storage = self._storage
        if storage.spec is None or storage.mesh is None:
            return (1,) * len(storage.shape)
        return partition.pieces_of(storage.spec, len(storage.shape), storage.mesh)

    def devices(self) -> set[Device]:
        """The devices of this worker that hold a copy, or a piece of one."""
        storage = self._storage
        if storage.mesh is None:
            return storage.live_array().devices()
        if storage.spec is not None:
            return {device for row in storage.mesh.local_logical_devices for device in row}
        return set(storage.mesh.local_devices)

    # -- reading -----------------------------------------------------------------------------

    @property
    def value(self) -> jax.Array:
        """The current value; a snapshot that later assignments do not change."""
        return self.read_value()

    def read_value(self) -> jax.Array:
        """The current value; a snapshot that later assignments do not change."""
        self._storage.require_width("a read")
        override = override_of(self)
        if override is not None:
            return self._storage.laid_out(override)
        self._check_strategy()
        frame = current_frame()
        if frame is not None:
            variable = self if frame.stand_in is None else frame.stand_in(self)
            return variable._read_traced(frame)
        self._check_foreign_trace("read")
        return self._read_concrete()

    def _read_traced(self, frame: Frame) -> Any:
        return frame.read(self._storage)

    def _read_concrete(self) -> jax.Array:
        return self._storage.hand_out()

    # -- assigning ---------------------------------------------------------------------------

    def assign(self, value: Any) -> Variable:
        """Replaces the value; in a replica, values are first combined by the aggregation.

        Args:
            value: The new value, of the variable's shape.

        Returns:
            This variable, so that calls can be chained.

        Raises:
            VariableError: If the value does not fit, or it is not known how to combine those of the
                replicas.
            DistributedValueError: If the value is a `PerReplica`, in cross-replica context.
            StaleReadError: In a JAX transformation that Replicax did not start.
        """
        return self._assign("assign", value)

    def assign_add(self, delta: Any) -> Variable:
        """Adds `delta`; in a replica, deltas are first combined by the aggregation.

        Args:
            delta: What to add.

        Returns:
            This variable, so that calls can be chained.

        Raises:
            VariableError: If the value does not fit, or it is not known how to combine those of the
                replicas.
            DistributedValueError: If the value is a `PerReplica`, in cross-replica context.
            StaleReadError: In a JAX transformation that Replicax did not start.
        """
        return self._assign("assign_add", delta)

    def assign_sub(self, delta: Any) -> Variable:
        """Subtracts `delta`; in a replica, deltas are first combined by the aggregation.

        Args:
            delta: What to subtract.

        Returns:
            This variable, so that calls can be chained.

        Raises:
            VariableError: If the value does not fit, or it is not known how to combine those of the
                replicas.
            DistributedValueError: If the value is a `PerReplica`, in cross-replica context.
            StaleReadError: In a JAX transformation that Replicax did not start.
        """
        return self._assign("assign_sub", delta)

    def _assign(self, method: str, value: Any) -> Variable:
        self._storage.require_width(method)
        self._check_strategy()
        frame = current_frame()
        if frame is None:
            self._check_foreign_trace(method)
        drop_override(self)
        if frame is None or frame.stand_in is None:
            self._apply(method, value)
        else:
            frame.stand_in(self)._apply(method, value)
        return self

    def _apply(self, method: str, value: Any) -> None:
        """Assigns according to the context."""
        entry = stack.top()
        if entry is not None and entry.mode is stack.Mode.REPLICA:
            replicas = entry.strategy.num_replicas_in_sync
            if replicas > 1:
                raise VariableError(
                    f"{method} of variable {self.name!r} inside run on {replicas} replicas: it was "
                    "created outside the strategy's scope and has one copy, so every replica "
                    "would update it. Create it inside `with strategy.scope():`."
                )
        storage = self._storage
        value = converted(value, storage, method)
        frame = current_frame()
        with exclusively():
            if method != "assign":
                old = frame.read(storage) if frame is not None else storage.live_array()
                value = COMBINES[method](old, value).astype(storage.dtype)
            if frame is not None:
                frame.write(storage, jnp.asarray(value))
            elif method == "assign":
                storage.set_value(value)
            else:
                storage.set(value)  # just computed: nobody else has it

    # -- rules common to all kinds -----------------------------------------------------------

    def _check_strategy(self) -> None:
        """Raises if another strategy than the variable's own is in force."""
        if self._strategy is None:
            return
        entry = stack.top()
        if entry is None or entry.strategy is self._strategy or not stack.has_strategy():
            return
        raise VariableError(
            f"variable {self.name!r} was created under {self._strategy!r} and is used inside "
            f"{stack.describe()}. Create it in that strategy's scope, or leave the scope first."
        )

    def _check_foreign_trace(self, use: str) -> None:
        """Raises if JAX would remember the value seen now, or leak one that is not there yet."""
        if use != "read" and is_batching():
            raise StaleReadError(
                f"variable {self.name!r} is assigned inside jax.vmap, where every element would "
                "write its own value. Return the values from the mapped function, combine them, "
                "and assign the result outside."
            )
        if not is_staging():
            return
        if use == "read" and epoch.has_token():
            epoch.note_traced_read()
            stack.keep_place()  # under another strategy it would be refused
            notices.notify_once(
                ("traced read", self.name),
                f"variable {self.name!r} is read inside jax.jit, lax.scan, lax.cond or "
                "jax.checkpoint in an eager run, which traces anew after every assignment. Put "
                "replicax.function around the function passed to run, or pass the variable as an "
                "argument.",
            )
            return
        if use == "read":
            raise StaleReadError(
                f"variable {self.name!r} is read inside jax.jit, lax.scan, lax.cond or "
                "jax.checkpoint, where JAX would keep the value it sees now for ever. Pass the "
                "variable as an argument, or use replicax.function instead of (or around) it."
            )
        raise StaleReadError(
            f"{use} of variable {self.name!r} was reached inside jax.jit, lax.scan, lax.cond or "
            "jax.checkpoint, where the value does not exist yet. Put replicax.function around the "
            "whole function, or return the value and assign it outside."
        )

    def __repr__(self) -> str:
        return describe_component(self, self._show)

    def _show(self) -> Any:
        return self.read_value()

    def __reduce__(self) -> Any:
        raise TypeError(
            f"variable {self.name!r} cannot be pickled: it belongs to this process's devices. "
            "Save its value: numpy.save(file, v.numpy())."
        )

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError(
            f"variable {self.name!r} cannot be copied. Create a new one: Variable(v.value)."
        )


_create: Any = inspect.signature(creators.create)
Variable.__signature__ = _create.replace(parameters=[*_create.parameters.values()][1:])


def _plain_variable(**options: Any) -> Variable:
    """What ``Variable(...)`` is where no strategy is in force."""
    return build(lambda storage: Variable, strategy=None, **options)


def is_partitioned(value: Any) -> bool:
    """Whether `value` is a variable in pieces."""
    return isinstance(value, Variable) and value._storage.spec is not None


def describe_component(variable: Any, read: Callable[[], Any]) -> str:
    """One line: name, shape, dtype and value."""
    text = f"<rx.Variable {variable.name!r} shape={variable.shape} dtype={variable.dtype}"
    if current_frame() is not None or is_staging():
        return f"{text}>"
    try:
        return f"{text}, {workers.translated(lambda: _shown(read()))}>"
    except Exception as error:  # a repr must not raise
        return f"{text}, {type(error).__name__}>"


def _shown(value: Any) -> str:
    if jnp.issubdtype(value.dtype, jax.dtypes.extended):
        return str(value)
    return f"numpy={np.array2string(np.asarray(value), separator=', ', threshold=32)}"


def _free(storage: Storage) -> None:
    """Lets the buffers of a variable go with it, although programs still know its storage."""
    storage.free()
