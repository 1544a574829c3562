"""A closure that is being traced: what it reads from servers and datasets, and what it updates.

Everything that comes from outside enters the trace as state does, under a key of its own; every
update leaves it as an emission. `programs` makes a program of both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import types
from collections.abc import Iterator, Mapping
from typing import Any

from replicax.core.errors import ContextError, TraceError
from replicax.engine.trace.frame import Frame, current_frame
from replicax.parameter_server.messages import UpdateKind
from replicax.parameter_server.storage import ServerStorage

Place = tuple[int, int, int]
"""An iterator, the turn of an element, and a leaf of that."""


@dataclasses.dataclass(frozen=True, slots=True)
class OuterKey:
    """Something that enters a trace and is no state: implements `engine.trace.frame.StateKey`."""

    name: str
    local_shape: tuple[int, ...]
    dtype: Any

    @property
    def global_shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.local_shape

    @property
    def per_replica(self) -> bool:
        """Not."""
        return False


@dataclasses.dataclass(frozen=True, slots=True)
class ElementKey(OuterKey):
    """A leaf of an element of an iterator of the worker."""

    iterator_id: int
    turn: int
    leaf: int


@dataclasses.dataclass(frozen=True, slots=True)
class RowsKey(OuterKey):
    """Rows of a variable: of which one, and the emission that says which rows."""

    storage: ServerStorage
    emission: int


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerKey(OuterKey):
    """The number of the worker."""


@dataclasses.dataclass(frozen=True, slots=True)
class RowsPurpose:
    """An emission that says which rows somebody needs or updates."""


@dataclasses.dataclass(frozen=True, slots=True)
class UpdatePurpose:
    """An emission that is the value of an update.

    Attributes:
        kind: What the update does.
        storage: The variable.
        rows: The emission that says which rows; None for all.
        optimizer_id: The optimizer, for a gradient.
    """

    kind: UpdateKind
    storage: ServerStorage
    rows: int | None = None
    optimizer_id: int | None = None


class ClosureTrace:
    """What the closure that is being traced has done so far.

    Attributes:
        frame: The frame of its trace.
        turns: How many elements it took from each iterator.
        optimizers: The optimizers that it has given gradients.
        shapes: Other shapes of leaves of elements than those of the first element of a dataset, by
            iterator, turn and leaf.
    """

    def __init__(self, frame: Frame, shapes: Mapping[Place, tuple[int, ...]]) -> None:
        """Nothing so far."""
        self.frame = frame
        self.shapes = shapes
        self.turns: dict[int, int] = {}
        self.optimizers: set[int] = set()
        self._updated_there: set[ServerStorage] = set()

    def emit(self, purpose: RowsPurpose | UpdatePurpose, value: Any, what: str) -> int:
        """Lets `value` leave the program; `what` names the call in an error."""
        return self.frame.emit(purpose, value, what)

    def note_update_there(self, storage: ServerStorage) -> None:
        """From here on only the server knows the value."""
        self._updated_there.add(storage)

    def require_known(self, storage: ServerStorage, use: str) -> None:
        """Raises if the value is not known here any more.

        Raises:
            TraceError: If an optimizer has updated it before.
        """
        if storage in self._updated_there:
            raise TraceError(
                f"{use} of variable {storage.name!r} comes after apply_gradients in the same "
                "closure: the servers compute the new value when the closure is done. Move it "
                "before apply_gradients, or into another closure."
            )


class _Scheduling(threading.local):
    """The strategy whose closure is being traced on this thread, and that trace."""

    strategy: Any = None
    trace: ClosureTrace | None = None
    shapes: Mapping[Place, tuple[int, ...]] = types.MappingProxyType({})


_local = _Scheduling()


@contextlib.contextmanager
def tracing_closure(
    strategy: Any, shapes: Mapping[Place, tuple[int, ...]] | None = None
) -> Iterator[None]:
    """What is traced in here is a closure of `strategy`."""
    outer = _local.strategy, _local.trace, _local.shapes
    _local.strategy, _local.trace, _local.shapes = strategy, None, shapes or {}
    try:
        yield
    finally:
        _local.strategy, _local.trace, _local.shapes = outer


def closure_trace(strategy: Any = None) -> ClosureTrace | None:
    """The closure that is being traced here, of `strategy` if one is given; None if none is."""
    frame = current_frame()
    if frame is None or _local.strategy is None:
        return None
    if strategy is not None and _local.strategy is not strategy:
        return None
    if _local.trace is None or _local.trace.frame is not frame:
        _local.trace = ClosureTrace(frame, _local.shapes)
    return _local.trace


def require_closure(strategy: Any, what: str) -> ClosureTrace:
    """The closure that is being traced here.

    Raises:
        ContextError: If none is.
    """
    trace = closure_trace(strategy)
    if trace is None:
        raise ContextError(
            f"{what} under {strategy!r} runs on workers: put it into a function, and pass that to "
            "ClusterCoordinator(strategy).schedule(fn)."
        )
    return trace
