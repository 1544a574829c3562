"""What mirrored and sync-on-read variables have in common: one container, N copies."""

from __future__ import annotations

import weakref
from typing import Any

import jax

from replicax.backend.devices import device_name
from replicax.core.errors import ContextError, VariableError
from replicax.core.shown import as_html
from replicax.core.typing import Device
from replicax.engine.contexts import stack
from replicax.engine.protocols import ExtendedLike
from replicax.engine.storage import Storage
from replicax.engine.trace.frame import current_frame
from replicax.engine.trace.overrides import drop_override
from replicax.values.distributed import ComponentView, DistributedValues, register_as_array
from replicax.values.operators import AssignableOperators
from replicax.variables.conversion import converted
from replicax.variables.update import UpdateSession
from replicax.variables.variable import COMBINES, Variable, describe_component


class DistributedVariable(Variable, DistributedValues):
    """A variable with one copy for each replica."""

    __slots__ = ("_views",)

    _views: tuple[VariableCopy, ...] | None

    def __init__(self, storage: Storage, **properties: Any) -> None:
        """Used by strategies; users call ``Variable(initial_value, ...)`` in a scope."""
        self._set_up(storage, **properties)
        self._views = None

    def _select(self, replica_id: Any) -> DistributedVariable:
        """The variable itself: in a replica it reads and writes that replica's copy."""
        del replica_id
        return self

    @property
    def _extended(self) -> ExtendedLike:
        """The logic of the strategy that created it."""
        assert self._strategy is not None
        return self._strategy.extended

    @property
    def values(self) -> tuple[VariableCopy, ...]:
        """One view per copy of this worker, the same objects each time."""
        if self._views is None:
            count = len(self._devices_in_order)
            self._views = tuple(VariableCopy(self, i) for i in range(count))
        return self._views

    @property
    def _devices_in_order(self) -> tuple[Device, ...]:
        """The device of each copy of this worker."""
        mesh = self._storage.mesh
        assert mesh is not None
        return mesh.local_devices

    def __repr__(self) -> str:
        first = 0 if self._storage.mesh is None else self._storage.mesh.local_replicas.start
        rows = "\n".join(f"  {index}: {view!r}," for index, view in enumerate(self.values, first))
        return f"{type(self).__name__}:{{\n{rows.rstrip(',')}\n}}"

    def _repr_html_(self) -> str:
        """What a notebook shows: a row for each copy of this worker."""
        first = 0 if self._storage.mesh is None else self._storage.mesh.local_replicas.start
        names = map(device_name, self._devices_in_order)
        rows = [
            (str(index), name, repr(view))
            for index, (name, view) in enumerate(zip(names, self.values, strict=True), first)
        ]
        title = f"{type(self).__name__} {self.name!r}"
        return as_html(title, [("replica", "device", "copy"), *rows])

    def _copy_id(self) -> int | None:
        """The copy of this worker that code here means, if it means one."""
        entry = stack.top()
        if entry is None:
            return None
        if entry.mode is stack.Mode.UPDATE:
            return entry.copy_id
        if entry.mode is stack.Mode.REPLICA and entry.strategy is self._strategy:
            mesh = self._extended.mesh
            return mesh.local_index(entry.replica_context.replica_id_in_sync_group)
        return None


@register_as_array
class VariableCopy(AssignableOperators, ComponentView):
    """One copy of a distributed variable, live.

    Keeps the storage alive, not the variable: it can be read after the variable
    is gone.
    """

    __slots__ = ("__weakref__", "_container", "_index", "_storage")

    def __init__(self, variable: DistributedVariable, index: int) -> None:
        """A view of copy `index` of `variable`."""
        self._container = weakref.ref(variable)
        self._storage = variable._storage
        self._index = index
        weakref.finalize(variable, _keep_last_value, weakref.ref(self)).atexit = False

    @property
    def _owner(self) -> DistributedValues | None:
        """The variable, or None when it is gone."""
        return self._container()

    @property
    def name(self) -> str:
        """The variable's name."""
        return self._storage.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The variable's shape."""
        return self._storage.shape

    @property
    def dtype(self) -> Any:
        """The variable's dtype."""
        return self._storage.dtype

    @property
    def value(self) -> jax.Array:
        """The current value of this copy."""
        return self.read_value()

    def read_value(self) -> jax.Array:
        """The current value of this copy."""
        self._storage.require_width("a read")
        variable = self._container()
        frame = current_frame()
        if variable is not None and frame is not None:
            if frame.stand_in is not None:
                return variable.read_value()
            return variable._read_copy(self._index)  # pyright: ignore[reportAttributeAccessIssue]
        session = _update_session()
        pending = None if session is None else session.pending(self._storage, self._index)
        return self._storage.component(self._index) if pending is None else pending

    def assign(self, value: Any) -> VariableCopy:
        """Replaces this copy; only in the function passed to ``extended.update``.

        Args:
            value: The new value.

        Returns:
            This copy.

        Raises:
            ContextError: Anywhere else.
        """
        return self._assign("assign", value)

    def assign_add(self, delta: Any) -> VariableCopy:
        """Adds to this copy; only in the function passed to ``extended.update``.

        Args:
            delta: What to add.

        Returns:
            This copy.

        Raises:
            ContextError: Anywhere else.
        """
        return self._assign("assign_add", delta)

    def assign_sub(self, delta: Any) -> VariableCopy:
        """Subtracts from this copy; only in the function passed to ``extended.update``.

        Args:
            delta: What to subtract.

        Returns:
            This copy.

        Raises:
            ContextError: Anywhere else.
        """
        return self._assign("assign_sub", delta)

    def _assign(self, method: str, value: Any) -> VariableCopy:
        session = _update_session()
        if session is None:
            raise ContextError(
                f"{method} of copy {self._index} of variable {self.name!r} in {stack.describe()}: "
                "a single copy may be written only by the function passed to extended.update. "
                "Assign to the variable itself."
            )
        value = converted(value, self._storage, method)
        if method != "assign":
            value = COMBINES[method](self.read_value(), value).astype(self._storage.dtype)
        variable = self._container()
        if variable is not None:
            drop_override(variable)
        session.write(self._storage, self._index, value)
        return self

    # Membership goes by identity: `copy in strategy.experimental_local_results(variable)`.
    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return describe_component(self, self.read_value)


def _keep_last_value(view: weakref.ref[VariableCopy]) -> None:
    """Called when the variable is gone, perhaps by the garbage collector in the middle of JAX.

    So it makes no array: JAX notes the Python stack for each new one, and loses count of its
    references if that happens while it is noting another.
    """
    copy = view()
    if copy is not None and copy._storage.has_value:
        copy._storage = copy._storage.snapshot()


def _update_session() -> UpdateSession | None:
    entry = stack.top()
    return None if entry is None else entry.update


def require_no_copy_drift(variable: Variable, method: str) -> None:
    """Raises where an assignment would reach only one copy of a mirrored variable.

    Raises:
        VariableError: Always; the caller has found that it would.
    """
    raise VariableError(
        f"{method} of variable {variable.name!r} inside run: it has "
        f"synchronization=ON_WRITE and aggregation=NONE, so it is not known how to combine the "
        f"values of {variable.strategy.num_replicas_in_sync} replicas. Create it with "
        "aggregation=VariableAggregation.SUM, MEAN or ONLY_FIRST_REPLICA, or assign in "
        "cross-replica context."
    )


def require_same_copies(variable: DistributedVariable, update: UpdateSession, method: str) -> None:
    """Raises where an update of one variable assigns another with fewer or more copies.

    Raises:
        VariableError: If `variable` is not on the devices that are being updated.
    """
    held, updated = len(variable._devices_in_order), update.num_copies
    if held != updated:
        raise VariableError(
            f"{method} of variable {variable.name!r} in an extended.update of a variable with "
            f"{updated} copies: it has {held}. Create it with colocate_vars_with(that variable), "
            "or update it by an extended.update of its own."
        )
