"""What a trace knows of the state it touches.

A `Frame` belongs to one trace that Replicax started. State enters it on first
touch, as a *hole*: an equation without inputs that later becomes an input of the
program, so that a trace costs what it touches and not what exists. The current
value is simply kept, and code inside a jit, cond, checkpoint, vmap or custom rule
closes over it, as it would over any array: JAX saves such values for the backward
pass and hands them on through every transformation.

Only where a value can change while the code runs is it moved into a JAX Ref: a
read in the body of a loop, which a later round may find changed, and a write inside
an inner trace. Code further inside closes over what is read there.

State is known only by its key; nothing here knows what a variable is.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
from jax import lax

from replicax.core import notices
from replicax.core.errors import TraceError
from replicax.jax_internals.primitives import Primitive
from replicax.jax_internals.programs import captured_tracers, shaped_array
from replicax.jax_internals.traces import (
    current_trace,
    inside_trace,
    is_about_writes,
    is_batching,
    recorded_for,
    traces_inside,
)

hole_p = Primitive("replicax_state")
hole_p.def_abstract_eval(lambda *, aval, index: aval)

# Part of every JAX cache key while we trace: a function that JAX traced in another frame, and
# that therefore holds that frame's state, is never reused in this one.
_trace_token = jax.make_user_context(None)
_trace_numbers = itertools.count(1)


# What JAX calls the programs that it records, by what their code may do with state. Inside loops it
# may find it changed by an earlier round, and like code at the frame's own level it may write.
_LOOPS = frozenset({"scan", "while_cond", "while_body", "fori_loop"})
_BRANCHES = frozenset({"cond", "switch"})
_STRAIGHT = _BRANCHES | {"jit", "custom_vjp fun"}
# In all others nothing is written, so that state does not change while they run. A write is refused
# here, or in a checkpoint by `varying`, which knows both lines.
_CHECKPOINT = "checkpoint / remat"
_REDUCTIONS = frozenset({"reduce comp", "reduce_window comp", "reduction_jaxpr"})


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

    __slots__ = (
        "derived",
        "first",
        "key",
        "read_apart",
        "ref",
        "site",
        "value",
        "written",
        "written_apart",
        "written_in",
    )

    def __init__(self, key: StateKey, value: Any) -> None:
        """Starts with the hole `value`."""
        self.key = key
        self.first = value
        self.value = value
        self.derived: Any = None
        self.ref: Any = None
        self.written = False
        self.written_in: weakref.WeakSet[Any] | None = None  # None: no inner trace wrote it
        self.written_apart = False  # an inner trace that is not known wrote it, too
        self.read_apart = False  # inside of traces that are not known
        self.site = ""

    def is_written_in(self, trace: Any) -> bool:
        """Whether code in `trace`, or inside it, may have written the value."""
        if self.written_in is None:
            return False
        return trace in self.written_in or (self.written_apart and _is_recording(trace))


class Frame:
    """The state touched by one trace, in order of first touch.

    Attributes:
        in_replica: Whether this is the trace of a replica function, where state
            has its per-replica shape, or of cross-replica code.
        cells: The touched state.
        entered: The part of it that came from outside the trace: the inputs.
        created: Whatever the caller created while tracing, for the caller.
        emitted: What the program gives beside its results: what for, as `emit` was told, and what.
        exchange: Gives the values of all variants of this trace; there is usually one.
        meshes: The meshes used by the program, for the caller.
        compiler_options: Options for the program, for the caller.
        asides: What leaves the program beside its results: for each a function that gets the values
            after every launch, without waiting for them, and the values.
        stand_in: What takes the place of a variable in this trace, for the caller; None where
            every variable is itself.
    """

    def __init__(self, *, in_replica: bool) -> None:
        """A frame for a trace that starts now."""
        self.in_replica = in_replica
        self.cells: dict[StateKey, Cell] = {}
        self.entered: list[StateKey] = []
        self.created: list[Any] = []
        self.emitted: list[tuple[Any, Any]] = []
        self.exchange: Callable[[Any], list[Any]] = lambda value: [value]
        self.meshes: list[Any] = []
        self.compiler_options: dict[str, Any] = {}
        self.asides: list[tuple[Callable[[Any], None], tuple[Any, ...]]] = []
        self.stand_in: Callable[[Any], Any] | None = None
        self._base: Any = None
        self._touched_in: Callable[[], Any] = lambda: None  # the inner trace that last did

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Makes this the current frame; to be entered at the top of the traced function."""
        self._base = current_trace()
        outer = current_frame()
        _local.frame = self
        try:
            with trace_token(next(_trace_numbers)):
                yield
        except NotImplementedError as error:
            self._explain(error)
            raise
        finally:
            _local.frame = outer

    def _explain(self, error: NotImplementedError) -> None:
        """Names the variables, if JAX says that it cannot differentiate a write.

        Raises:
            TraceError: In that case, in place of `error`.
        """
        inside = [cell for cell in self.cells.values() if cell.written_in is not None]
        if inside and is_about_writes(error):
            names = " and ".join(f"{cell.key.name!r} (at {cell.site})" for cell in inside)
            raise TraceError(
                f"variable {names} is assigned inside a branch of a loop that is differentiated, "
                "which JAX cannot do. Carry the new value through the loop, and assign it after "
                "the gradient is taken."
            ) from error

    def read(self, key: StateKey) -> Any:
        """The current value of `key`.

        Raises:
            TraceError: Where JAX cannot close over it.
        """
        cell = self._touch(key)
        level = self._level_of(cell)
        if level is self._base and cell.ref is None:
            return cell.value
        ref = self._ref_of(cell)
        with inside_trace(level):
            return ref[...]

    def derived(self, key: StateKey, derive: Callable[[Any], Any]) -> Any:
        """What `derive`, the same function each time, makes of the current value of `key`.

        At the frame's own level it is computed once for every value.
        """
        value = self.read(key)
        cell = self.cells[key]
        if cell.ref is not None:
            return derive(value)
        if cell.derived is None:
            with inside_trace(self._base):
                cell.derived = derive(value)
        return cell.derived

    def write(self, key: StateKey, value: Any) -> None:
        """Makes `value` the current value of `key`; no gradient flows through it.

        Raises:
            TraceError: Inside vmap, where there is one variable and many values, and where JAX
                may run code more than once.
        """
        if is_batching(until=self._base):
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
        if not self.is_own_level():
            self._write_inside(cell)
        if cell.ref is None:
            cell.value = value
        else:
            cell.ref[...] = value

    def emit(self, purpose: Any, value: Any, what: str) -> int:
        """Makes `value` an output of the program beside its results.

        Args:
            purpose: What it is for, for who started the trace.
            value: The value; no gradient flows through it.
            what: What to call it in an error.

        Returns:
            Its place in `emitted`.

        Raises:
            TraceError: In an inner trace, where it may be computed any number of times.
        """
        if not self.is_own_level() or is_batching(until=self._base):
            raise TraceError(
                f"{what} was reached inside jax.jit, lax.scan, lax.cond, jax.vmap or a similar "
                "transformation, and has to leave the program. Return the value from there, and "
                "make the call outside."
            )
        self.emitted.append((purpose, lax.stop_gradient(value)))
        return len(self.emitted) - 1

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
        with inside_trace(self._base):
            self.cells[key] = Cell(key, value)

    def is_own_level(self) -> bool:
        """Whether the current code runs at the frame's own level, in no inner trace."""
        inside, _ = traces_inside(self._base)
        return not any(map(_is_recording, inside))

    def program(self, jaxpr: Any) -> Any:
        """The traced `jaxpr` with the state that entered as its first inputs.

        Raises:
            TraceError: JAX has lost the place of a value that was read.
        """
        for tracer in captured_tracers(jaxpr):
            for cell in self.cells.values():
                if cell.read_apart or tracer is cell.value or tracer is cell.ref:
                    raise TraceError(
                        f"variable {cell.key.name!r} is read in a rule of jax.custom_jvp or "
                        "jax.custom_vjp, for a function that is differentiated inside jit, scan or "
                        "cond, where JAX takes nothing from outside. Pass the value to the "
                        "function as an argument, and to a backward rule with the residuals."
                    )
        return fill_holes(jaxpr, len(self.entered))

    def _touch(self, key: StateKey) -> Cell:
        cell = self.cells.get(key)
        if cell is None:
            shape = key.local_shape if self.in_replica else key.global_shape
            aval = shaped_array(shape, key.dtype)
            with inside_trace(self._base):
                hole = hole_p.bind(aval=aval, index=len(self.entered))
            self.entered.append(key)
            cell = self.cells[key] = Cell(key, hole)
        return cell

    def _ref_of(self, cell: Cell) -> Any:
        """The Ref that holds the value from now on.

        It is made with the first value, by which `numbering` tells what state it is.
        """
        if cell.ref is None:
            with inside_trace(self._base):
                cell.ref = jax.new_ref(cell.first)
                if cell.value is not cell.first:
                    cell.ref[...] = cell.value
            cell.value = cell.first = cell.derived = None
        return cell.ref

    def _level_of(self, cell: Cell) -> Any:
        """The outermost trace where the value is what it is in the innermost one."""
        inside, is_all = traces_inside(self._base)
        level = self._base
        for trace in inside:
            kind = recorded_for(trace)
            if kind in _REDUCTIONS:
                raise TraceError(
                    f"variable {cell.key.name!r} is read in a function that reduces two values to "
                    "one, where JAX takes nothing from outside. Use the variable before or after "
                    "the reduction, or write it as lax.scan or lax.associative_scan."
                )
            if kind in _LOOPS or cell.is_written_in(trace):
                level = trace
            elif kind is not None and kind not in _STRAIGHT:
                break
        if not is_all and level is self._base:
            if cell.written_in is not None:
                raise _apart(cell.key)
            cell.read_apart = True
        self._note_touch(inside)
        return level

    def _write_inside(self, cell: Cell) -> None:
        inside, is_all = traces_inside(self._base)
        recording = list(filter(_is_recording, inside))
        for trace in recording:
            kind = recorded_for(trace)
            if kind not in _LOOPS | _STRAIGHT | {_CHECKPOINT}:
                raise TraceError(
                    f"variable {cell.key.name!r} is assigned inside {kind}, where JAX runs the "
                    "code any number of times, or not at all. Return the value from there and "
                    "assign it outside."
                )
        if cell.read_apart:
            raise _apart(cell.key)
        if cell.written_in is None:
            cell.written_in = weakref.WeakSet()
        cell.written_in.update(recording)
        cell.written_apart |= not is_all
        self._ref_of(cell)
        self._note_touch(inside)

    def _note_touch(self, inside: list[Any]) -> None:
        """Keeps JAX from reusing the functions that are being traced.

        They hold values as they are now and here, and what they write must be seen again.
        """
        innermost = next(filter(_is_recording, reversed(inside)), None)
        if innermost is not None and self._touched_in() is not innermost:
            self._touched_in = weakref.ref(innermost)
            # Never left: `tracing` brings back what was before it, also after Ctrl-C.
            trace_token(next(_trace_numbers)).__enter__()


def is_conditional(trace: Any) -> bool:
    """Whether code in `trace` may run more than once when the program runs, or not at all."""
    return recorded_for(trace) in _LOOPS | _BRANCHES


def _is_recording(trace: Any) -> bool:
    return recorded_for(trace) not in (None, "vmap")


def _apart(key: StateKey) -> TraceError:
    return TraceError(
        f"variable {key.name!r} is read inside jax.custom_jvp or jax.custom_vjp, which JAX traces "
        "apart from what is around it, and assigned inside jit, scan, cond or while: which of its "
        "values should be read is not known. Pass the value to the function as an argument."
    )


def current_frame() -> Frame | None:
    """The frame of the innermost trace that Replicax started on this thread."""
    return _local.frame


@contextlib.contextmanager
def frame_of(frame: Frame | None) -> Iterator[None]:
    """Makes `frame` current, for a thread that works on another thread's behalf."""
    outer = current_frame()
    _local.frame = frame
    try:
        yield
    finally:
        _local.frame = outer


def watch() -> Any:
    """An object whose ``frame`` is `current_frame`, for code that asks in every step."""
    return _local


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
