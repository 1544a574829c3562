"""What a trace knows of the state it touches.

A `Frame` belongs to one trace that Replicax started. State enters it on first
touch, as a *hole*: an equation without inputs that later becomes an input of the
program, so that a trace costs what it touches and not what exists. As long as
all touches happen at the frame's own level the current value is simply kept;
the first touch from inside a scan, cond, jit or checkpoint moves it into a JAX
Ref, which reads and writes correctly there too.

State is known only by its key; nothing here knows what a variable is.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
from jax import lax

from replicax.backend import compat
from replicax.core import notices
from replicax.core.errors import TraceError

hole_p = compat.Primitive("replicax_state")
hole_p.def_abstract_eval(lambda *, aval, index: aval)

# Part of every JAX cache key while we trace: a function that JAX traced in another frame, and
# that therefore holds that frame's state, is never reused in this one.
_trace_token = jax.make_user_context(None)
_trace_numbers = itertools.count(1)


class _Local(threading.local):
    frame: Frame | None = None


_local = _Local()


class StateKey(Protocol):
    """One piece of state: what a frame must know of it."""

    @property
    def name(self) -> str:
        """What to call it in an error."""
        ...

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Its shape in a replica."""
        ...

    @property
    def global_shape(self) -> tuple[int, ...]:
        """Its shape outside of the replicas."""
        ...

    @property
    def dtype(self) -> Any:
        """Its dtype."""
        ...

    @property
    def per_replica(self) -> bool:
        """Whether every replica has a value of its own."""
        ...


class Cell:
    """The current value of one piece of state inside one frame."""

    __slots__ = ("derived", "key", "ref", "site", "value", "written")

    def __init__(self, key: StateKey, value: Any) -> None:
        """Starts with the hole `value`."""
        self.key = key
        self.value = value
        self.derived: Any = None
        self.ref: Any = None
        self.written = False
        self.site = ""


class Frame:
    """The state touched by one trace, in order of first touch.

    Attributes:
        in_replica: Whether this is the trace of a replica function, where state
            has its per-replica shape, or of cross-replica code.
        cells: The touched state.
        entered: The part of it that came from outside the trace: the inputs.
        created: Whatever the caller created while tracing, for the caller.
        exchange: Gives the values of all variants of this trace; there is usually one.
        meshes: The meshes used by the program, for the caller.
        compiler_options: Options for the program, for the caller.
    """

    def __init__(self, *, in_replica: bool) -> None:
        """A frame for a trace that starts now."""
        self.in_replica = in_replica
        self.cells: dict[StateKey, Cell] = {}
        self.entered: list[StateKey] = []
        self.created: list[Any] = []
        self.exchange: Callable[[Any], list[Any]] = lambda value: [value]
        self.meshes: list[Any] = []
        self.compiler_options: dict[str, Any] = {}
        self._base: Any = None

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Makes this the current frame; to be entered at the top of the traced function."""
        self._base = compat.current_trace()
        outer = current_frame()
        _local.frame = self
        try:
            with trace_token(next(_trace_numbers)):
                yield
        finally:
            _local.frame = outer

    def read(self, key: StateKey) -> Any:
        """The current value of `key`."""
        cell = self._touch(key)
        if cell.ref is None and compat.is_staged_below(self._base):
            self._move_to_ref(cell)
        return cell.value if cell.ref is None else cell.ref[...]

    def derived(self, key: StateKey, derive: Callable[[Any], Any]) -> Any:
        """What `derive`, the same function each time, makes of the current value of `key`.

        At the frame's own level it is computed once for every value.
        """
        value = self.read(key)
        cell = self.cells[key]
        if cell.ref is not None:
            return derive(value)
        if cell.derived is None:
            with compat.inside_trace(self._base):
                cell.derived = derive(value)
        return cell.derived

    def write(self, key: StateKey, value: Any) -> None:
        """Makes `value` the current value of `key`; no gradient flows through it.

        Raises:
            TraceError: Inside vmap, where there is one variable and many values.
        """
        if compat.is_batching(until=self._base):
            raise TraceError(
                f"variable {key.name!r} is assigned inside jax.vmap, where every element would "
                "write its own value. Return the values from the mapped function, combine them, "
                "and assign the result outside."
            )
        cell = self._touch(key)
        value = lax.stop_gradient(value)
        cell.written = True
        cell.derived = None
        cell.site = "{}:{}".format(*notices.user_line())
        if cell.ref is None and compat.is_staged_below(self._base):
            self._move_to_ref(cell)
        if cell.ref is None:
            cell.value = value
        else:
            cell.ref[...] = value

    def written_values(self) -> list[Any]:
        """The final values of all written state; to be called at the end of the traced function."""
        return [
            cell.value if cell.ref is None else cell.ref[...]
            for cell in self.cells.values()
            if cell.written
        ]

    @property
    def written(self) -> list[StateKey]:
        """The written state, in the order of `written_values`."""
        return [key for key, cell in self.cells.items() if cell.written]

    def adopt(self, key: StateKey, value: Any) -> None:
        """Starts `key` with a value computed in this very trace."""
        with compat.inside_trace(self._base):
            self.cells[key] = Cell(key, value)

    def is_own_level(self) -> bool:
        """Whether the current code runs at the frame's own level, in no inner trace."""
        return not compat.is_staged_below(self._base)

    def _touch(self, key: StateKey) -> Cell:
        cell = self.cells.get(key)
        if cell is None:
            shape = key.local_shape if self.in_replica else key.global_shape
            aval = compat.shaped_array(shape, key.dtype)
            with compat.inside_trace(self._base):
                hole = hole_p.bind(aval=aval, index=len(self.entered))
            self.entered.append(key)
            cell = self.cells[key] = Cell(key, hole)
        return cell

    def _move_to_ref(self, cell: Cell) -> None:
        with compat.inside_trace(self._base):
            cell.ref = jax.new_ref(cell.value)
        cell.value = cell.derived = None


def current_frame() -> Frame | None:
    """The frame of the innermost trace that Replicax started on this thread."""
    return _local.frame


def watch() -> Any:
    """An object whose ``frame`` is `current_frame`, for code that asks in every step."""
    return _local


@contextlib.contextmanager
def frame_of(frame: Frame | None) -> Iterator[None]:
    """Makes `frame` current, for a thread that works on another thread's behalf."""
    outer = current_frame()
    _local.frame = frame
    try:
        yield
    finally:
        _local.frame = outer


def trace_token(value: object) -> Any:
    """A context in which JAX reuses nothing that it traced under another token."""
    return _trace_token(value)


def fill_holes(jaxpr: Any, num_holes: int) -> Any:
    """`jaxpr` with its holes turned into inputs, in front of the others."""
    holes = {eqn.params["index"]: eqn for eqn in jaxpr.eqns if eqn.primitive is hole_p}
    return jaxpr.replace(
        invars=[*(holes[index].outvars[0] for index in range(num_holes)), *jaxpr.invars],
        eqns=[eqn for eqn in jaxpr.eqns if eqn.primitive is not hole_p],
    )
