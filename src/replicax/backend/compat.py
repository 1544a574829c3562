"""Every private JAX API that Replicax depends on, and why.

Nothing else in the package imports `jax._src`. Each function here has a test in
``tests/backend/test_compat*.py`` that fails when JAX moves what it uses. `compat_processes` has
what concerns the process as a whole; its names are here, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import pathlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax._src import api as jax_api
from jax._src import config as jax_config
from jax._src import core as jax_core
from jax._src import source_info_util
from jax._src.array import ArrayImpl
from jax._src.config import config_ext
from jax._src.interpreters import batching, mlir, pxla
from jax._src.interpreters import partial_eval as pe
from jax._src.lib import _jax, xla_client  # pyright: ignore[reportPrivateImportUsage]
from jax._src.state.types import AbstractRef

from replicax.backend.compat_processes import (
    DetectedProcess as DetectedProcess,
)
from replicax.backend.compat_processes import (
    await_departures as await_departures,
)
from replicax.backend.compat_processes import (
    connect_to_coordination as connect_to_coordination,
)
from replicax.backend.compat_processes import (
    coordination_client as coordination_client,
)
from replicax.backend.compat_processes import (
    forget_coordination as forget_coordination,
)
from replicax.backend.compat_processes import (
    gke_tpu_hosts as gke_tpu_hosts,
)
from replicax.backend.compat_processes import (
    has_started as has_started,
)
from replicax.backend.compat_processes import (
    is_tpu_host as is_tpu_host,
)
from replicax.backend.compat_processes import (
    leave_coordination as leave_coordination,
)
from replicax.backend.compat_processes import (
    slurm_process as slurm_process,
)
from replicax.backend.compat_processes import (
    start_coordination_service as start_coordination_service,
)
from replicax.backend.compat_processes import (
    start_preemption_service as start_preemption_service,
)

Trace = Any
ConcreteArray = ArrayImpl  # the type of every concrete array; `jax.Array` only abstracts it

_PACKAGE = str(pathlib.Path(__file__).resolve().parents[1]) + "/"


# -- traces ------------------------------------------------------------------------------------
# A variable that is first touched deep inside a scan or a grad must enter the program at the
# trace of its frame, not at the innermost one; JAX has no public way to name or select a trace.


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


# -- programs ----------------------------------------------------------------------------------
# `jax.extend.core` has these four, but its package imports Pallas, which takes 25 ms.

Jaxpr = jax_core.Jaxpr
ClosedJaxpr = jax_core.ClosedJaxpr
Literal = jax_core.Literal
Primitive = jax_core.Primitive


def eval_jaxpr(jaxpr: Any, consts: Sequence[Any], *args: Any) -> list[Any]:
    """Evaluates a jaxpr in the current trace; `jax.core` no longer documents this."""
    return jax_core.eval_jaxpr(jaxpr, consts, *args)


def shaped_array(shape: Sequence[int], dtype: Any) -> Any:
    """The strongly typed abstract value of this shape and dtype."""
    return jax_core.ShapedArray(tuple(shape), dtype)


def lower_as_identity(primitive: Any) -> None:
    """Lets a primitive with one operand compile to nothing, and vmap look through it.

    Our own primitives mark values for the passes over a trace; there is no documented way to say
    what becomes of them afterwards.
    """
    mlir.register_lowering(primitive, lambda ctx, value, **params: [value])

    def batched(args: Any, dims: Any, **params: Any) -> Any:
        return primitive.bind(*args, **params), dims[0]

    batching.primitive_batchers[primitive] = batched


def is_ref(atom: Any) -> bool:
    """Whether a variable of a jaxpr is a mutable Ref, not a value."""
    return isinstance(atom.aval, AbstractRef)


def open_jaxpr(jaxpr: Any) -> Any:
    """The plain Jaxpr of a ClosedJaxpr; a plain one unchanged."""
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def sub_jaxprs(params: Mapping[str, Any]) -> Iterator[Any]:
    """Every jaxpr among an equation's parameters, also inside tuples, as plain Jaxprs."""
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, Jaxpr | ClosedJaxpr):
                yield open_jaxpr(item)


@dataclasses.dataclass(frozen=True, slots=True)
class TransposedProduct:
    """How a traced array was made: by transposing a product.

    Attributes:
        product: The product.
        permutation: How it was transposed.
        contracted: The sizes of the dims that it was summed over.
    """

    product: Any
    permutation: tuple[int, ...]
    contracted: tuple[int, ...]


def transposed_product(array: Any) -> TransposedProduct | None:
    """How `array` was made, if that was by transposing a product in the innermost trace.

    JAX has no public way to look at what made a tracer.
    """
    transposition = getattr(array, "parent", None) if is_traced_inside(array) else None
    if transposition is None or transposition.primitive is not jax.lax.transpose_p:
        return None
    (product,) = transposition.in_tracers
    multiplication = getattr(product, "parent", None)
    if multiplication is None or multiplication.primitive is not jax.lax.dot_general_p:
        return None
    (axes, _), _ = multiplication.params["dimension_numbers"]
    shape = multiplication.in_tracers[0].aval.shape
    contracted = tuple(shape[axis] for axis in axes)
    return TransposedProduct(product, transposition.params["permutation"], contracted)


def captured_tracers(jaxpr: Any) -> Iterator[Any]:
    """The tracers among the constants of bodies at any depth of a plain Jaxpr.

    Such a body cannot be compiled. JAX leaves them there when a rule of ``custom_jvp`` or
    ``custom_vjp`` closes over a tracer.
    """
    for eqn in jaxpr.eqns:
        for value in eqn.params.values():
            for item in value if isinstance(value, tuple | list) else (value,):
                if isinstance(item, ClosedJaxpr):
                    yield from (c for c in item.consts if isinstance(c, jax_core.Tracer))
        for body in sub_jaxprs(eqn.params):
            yield from captured_tracers(body)


def is_about_writes(error: NotImplementedError) -> bool:
    """Whether JAX says that it cannot transform a write to a Ref; it has no type for that."""
    return "effect" in str(error).lower()


def user_line(eqn: Any) -> str:
    """The user's ``file:line`` that made an equation, frames of JAX and Replicax left out."""
    for frame in source_info_util.user_frames(eqn.source_info.traceback):
        if not frame.file_name.startswith(_PACKAGE):
            return f"{frame.file_name}:{frame.start_line}"
    return "an unknown line"


@contextlib.contextmanager
def origin_of(eqn: Any) -> Iterator[None]:
    """Equations bound in here carry the source line, name and context of ``eqn``."""
    name_stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with (
        source_info_util.user_context(eqn.source_info.traceback, name_stack=name_stack),
        eqn.ctx.manager,
    ):
        yield


# -- launching ---------------------------------------------------------------------------------
# `jit` takes its arguments apart, describes each of them anew and looks the program up, in every
# call; for a small program that is a third of the time. A caller who knows that nothing has changed
# can call the executable itself, for which JAX has no public way: `Compiled.__call__` is slower.

kind_of: Callable[[jax.Array], tuple[Any, jax.sharding.Sharding, bool]]
kind_of = operator.attrgetter("aval", "_sharding", "_committed")
"""What `jit` looks at of a concrete array; raises AttributeError for values of another kind."""

is_committed: Callable[[jax.Array], bool]
is_committed = operator.attrgetter("_committed")
"""``array.committed``, without the Python code of that."""

PLAIN_STATES: tuple[tuple[Any, Any], ...] = (
    (jax_core.trace_state_strong_ref, jax_core.eval_trace),
    (jax_api._post_hook_state, None),
    (jax_config.device_context, None),
)
"""What `jit` looks at in every call beside its arguments and `trace_settings`, with the ``value``
of each where `jit` does nothing but run the program: no open trace, no check of results (for NaN),
no devices chosen by a context."""


@dataclasses.dataclass(frozen=True, slots=True)
class Executable:
    """A compiled program, to be called without any checks.

    Its outputs come from ``consume(execute(inputs), *handlers)``. There is no method for it: a
    caller who must not lose them to Ctrl-C needs all in one call of C code.

    Attributes:
        execute: Starts it with a list of arrays, which it takes as they are. One that is deleted
            ends the process.
        handlers: A tuple of the one other argument of `consume`.
        kept: Which of the inputs it uses; None for all.
    """

    execute: Callable[[Sequence[jax.Array]], Any]
    handlers: tuple[Any]
    kept: list[int] | None


consume: Callable[[Any, Any], list[jax.Array]] = _jax.ExecuteResults.consume_with_handlers
"""See `Executable`."""


def executable_of(compiled: Any, inputs: Sequence[jax.Array]) -> Executable | None:
    """How to call `compiled` with inputs of the `kind_of` these; None if that needs more care."""
    executable = compiled._executable
    call = executable.unsafe_call
    if (
        type(call) is not pxla.ExecuteReplicated
        or call.ordered_effects
        or call.has_unordered_effects
        or call.has_host_callbacks
        or call.mut is not None
        or call.pgle_profiler is not None
        or len(executable._all_args_info.in_avals) != len(inputs)  # constants are inputs, too
        or len(call.out_handler.handlers) != compiled.out_tree.num_leaves
        or any(map(_is_extended, executable.out_avals))
    ):
        return None
    kept = sorted(call.kept_var_idx)
    for index, sharding in zip(kept, executable._in_shardings, strict=True):
        array = inputs[index]
        if not array.sharding.is_equivalent_to(sharding, array.ndim):
            return None
    return Executable(
        call.xla_executable.execute_sharded,
        (call.out_handler.handlers,),
        None if len(kept) == len(inputs) else kept,
    )


def _is_extended(aval: Any) -> bool:
    return jax.numpy.issubdtype(aval.dtype, jax.dtypes.extended)


# -- arrays ------------------------------------------------------------------------------------
# What leaves the library must mix with any other array. JAX refuses to combine arrays committed
# to different devices, and has no public way to make an array on a given device uncommitted.


def _uncommitted_handler(example: jax.Array) -> Callable[[Sequence[jax.Array]], jax.Array]:
    """Makes uncommitted arrays like the one-device array `example`, cheaply."""
    (device,) = example.devices()
    return xla_client.array_result_handler(
        example.aval,  # pyright: ignore[reportAttributeAccessIssue]
        jax.sharding.SingleDeviceSharding(device),
        committed=False,
        _skip_checks=True,
    )


def uncommitted_first(example: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """A function from arrays like `example` to their first copies, uncommitted."""
    handler = _uncommitted_handler(shards(example)[0])
    if len(example.devices()) == 1:
        return lambda array: handler([array])
    return lambda array: handler(array._arrays[:1])  # pyright: ignore[reportAttributeAccessIssue]


def uncommitted(array: jax.Array) -> jax.Array:
    """An uncommitted view of the one-device array `array`; the buffer is shared."""
    if not array.committed:
        return array
    if jax.numpy.issubdtype(array.dtype, jax.dtypes.extended):
        data = uncommitted(jax.random.key_data(array))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))
    return _uncommitted_handler(array)([array])


def shards(array: jax.Array) -> list[jax.Array]:
    """The addressable one-device arrays behind `array`, in mesh order.

    `addressable_data(i)` answers with shard 0 for every i when the array is
    replicated, and `addressable_shards` costs ten times as much.
    """
    if jax.numpy.issubdtype(array.dtype, jax.dtypes.extended):
        data = shards(jax.random.key_data(array))
        return [jax.random.wrap_key_data(d, impl=jax.random.key_impl(array)) for d in data]
    return array._arrays  # pyright: ignore[reportAttributeAccessIssue]


def is_deleted(array: Any) -> bool:
    """Whether any of the local parts of a concrete array is deleted.

    ``array.is_deleted()`` looks at the first only. A program that gets such an array ends the
    process.
    """
    parts = getattr(getattr(array, "_base_array", array), "_arrays", ())  # of random keys
    return array.is_deleted() or any(map(ConcreteArray.is_deleted, parts))


def parts_placer(example: jax.Array) -> Callable[[Sequence[Any]], jax.Array]:
    """A function from host arrays, one for each local device, to an array like `example`.

    The arrays must have the shape and dtype of the parts of `example`, in the order of its
    `addressable_devices_indices_map`. `make_array_from_callback` finds out the same things anew in
    every call, which takes longer than the placement itself. Parts that are equal by the layout of
    `example` may come to share the memory of one of them.
    """
    sharding, committed = example.sharding, example.committed
    devices = list(sharding.addressable_devices_indices_map(example.shape))
    aval = example.aval  # pyright: ignore[reportAttributeAccessIssue]
    put = xla_client.batched_device_put
    return lambda parts: put(aval, sharding, parts, devices, committed)


# -- threads -----------------------------------------------------------------------------------
# JAX keeps its open traces and its scoped settings (x64, debug flags, default device) per thread;
# a helper thread that works on behalf of the caller must see the same ones.


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
    yield jax_core.trace_state_strong_ref
    yield jax_core.axis_env_state
    yield jax_config.mesh_context_manager
    yield jax_config.abstract_mesh_context_manager
    yield from jax_config.config_states.values()


def _swap(state: Any, value: Any) -> Any:
    previous = state.swap_local(value)
    hook = getattr(state, "_update_thread_local_hook", None)
    if hook is not None:
        hook(None if value is config_ext.unset else value)
    return previous
