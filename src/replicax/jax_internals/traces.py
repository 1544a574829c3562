"""JAX's traces: which are open, how to work inside or outside of one, and their settings.

A variable that is first touched deep inside a scan or a grad must enter the program at the trace of
its frame, not at the innermost one; JAX has no public way to name or select a trace. JAX keeps its
open traces and its scoped settings (x64, debug flags, default device) per thread; a helper thread
that works on behalf of the caller must see the same ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import jax
from jax._src import config as jax_config
from jax._src import core as jax_core
from jax._src import mesh as jax_mesh
from jax._src.config import config_ext
from jax._src.interpreters import batching
from jax._src.interpreters import partial_eval as pe

Trace = Any

# JAX 0.11 moved the state of `jax.set_mesh` there.
_MESH_STATES: Any = jax_mesh if hasattr(jax_mesh, "abstract_mesh_context_manager") else jax_config


def set_everywhere(context: Any, value: Hashable) -> None:
    """Sets a context of ``jax.make_user_context`` for all threads; JAX 0.10.0 has no way to."""
    setter = getattr(context, "set_global", None) or context._obj.set_global
    setter(value)


def current_trace() -> Trace:
    """The innermost JAX trace of this thread."""
    return jax_core.trace_ctx.trace


@contextlib.contextmanager
def inside_trace(trace: Trace) -> Iterator[None]:
    """Makes `trace` the current one, although more traces are open inside it.

    Also inside ``jax.ensure_compile_time_eval``, which would evaluate what has no inputs.
    """
    with jax_core.set_current_trace(trace), jax_config.eager_constant_folding(False):
        yield


def _chain() -> Iterator[Trace]:
    trace = jax_core.trace_ctx.trace
    while trace is not None:
        yield trace
        trace = getattr(trace, "parent_trace", None)


def is_staging() -> bool:
    """Whether some JAX transformation is recording a program (jit, scan, cond, checkpoint)."""
    return any(isinstance(trace, pe.DynamicJaxprTrace) for trace in _chain())


def is_transforming() -> bool:
    """Whether any JAX transformation at all is open on this thread."""
    return not isinstance(jax_core.trace_ctx.trace, jax_core.EvalTrace)


@contextlib.contextmanager
def outside_traces() -> Iterator[None]:
    """As if no trace were open: programs can be compiled and launched in here."""
    with jax_core.eval_context(), jax_config.eager_constant_folding(False):
        yield


def concretely() -> contextlib.AbstractContextManager[Any]:
    """Lets operations on concrete values run at once, also while a program is recorded."""
    return jax.ensure_compile_time_eval() if is_transforming() else contextlib.nullcontext()


def is_batching(until: Trace | None = None) -> bool:
    """Whether a vmap is open, looking outward no further than the trace `until`."""
    for trace in _chain():
        if trace is until:
            return False
        if isinstance(trace, batching.BatchTrace):
            return True
    return False


def trace_of(tracer: Any) -> Trace:
    """The trace that `tracer` is a value of."""
    return tracer._trace


def traces_inside(base: Trace) -> tuple[list[Trace], bool]:
    """The traces open inside `base`, outermost first, and whether these are all.

    They are not inside the functions and rules of ``custom_jvp`` and ``custom_vjp``, which JAX
    traces apart from what is around them.
    """
    inside = []
    for trace in _chain():
        if trace is base:
            return inside[::-1], True
        inside.append(trace)
    return inside[::-1], False


def is_open(tracer: Any) -> bool:
    """Whether the transformation that a tracer belongs to is open around the current code.

    JAX computes with a tracer where it is not, and loses the derivative or fails much later.
    """
    return any(trace is tracer._trace for trace in _chain())


def recorded_for(trace: Trace) -> str | None:
    """What `trace` records a program for, in JAX's words: "jit", "scan", "custom_jvp fun".

    "vmap" for a trace that maps; None for one that does neither.
    """
    if isinstance(trace, pe.DynamicJaxprTrace):
        debug_info = trace.frame.debug_info
        return "an inner program" if debug_info is None else debug_info.traced_for
    return "vmap" if isinstance(trace, batching.BatchTrace) else None


def is_traced_inside(tracer: Any) -> bool:
    """Whether `tracer` belongs to the innermost program being recorded."""
    for trace in _chain():
        if isinstance(trace, pe.DynamicJaxprTrace):
            return getattr(tracer, "_trace", None) is trace
    return False


trace_settings: Callable[[], Hashable] = jax_config.trace_context
"""The settings that change what JAX traces: x64, precision, promotion, open meshes."""


def is_about_writes(error: NotImplementedError) -> bool:
    """Whether JAX says that it cannot transform a write to a Ref; it has no type for that."""
    return "effect" in str(error).lower()


def capture_thread_state() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """A context manager factory that gives another thread this thread's JAX state."""
    captured = [(state, state.get_local()) for state in _thread_states()]
    captured = [(state, value) for state, value in captured if value is not config_ext.unset]

    @contextlib.contextmanager
    def surroundings() -> Iterator[None]:
        saved = [(state, _swap(state, value)) for state, value in captured]
        try:
            yield
        finally:
            for state, value in reversed(saved):
                _swap(state, value)

    return surroundings


def _thread_states() -> Iterator[Any]:
    yield jax_core.trace_state
    if hasattr(jax_core, "trace_state_strong_ref"):  # what `jit` looks at, for speed
        yield jax_core.trace_state_strong_ref
    yield jax_core.axis_env_state
    yield jax_config.mesh_context_manager
    yield _MESH_STATES.abstract_mesh_context_manager
    yield from jax_config.config_states.values()


def _swap(state: Any, value: Any) -> Any:
    previous = state.swap_local(value)
    hook = getattr(state, "_update_thread_local_hook", None)
    if hook is not None:
        hook(None if value is config_ext.unset else value)
    return previous
