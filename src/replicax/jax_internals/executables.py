"""Calls a compiled program itself, without what `jit` does to find it.

`jit` takes its arguments apart, describes each of them anew and looks the program up, in every
call; for a small program that is a third of the time. A caller who knows that nothing has changed
can call the executable itself, for which JAX has no public way: `Compiled.__call__` is slower.

This is an optional part: with a JAX that has not all of these names, `missing` says which, and
every step goes through `jit`.
"""

from __future__ import annotations

import dataclasses
import importlib
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax

kind_of: Callable[[jax.Array], tuple[Any, jax.sharding.Sharding, bool]]
kind_of = operator.attrgetter("aval", "_sharding", "_committed")
"""What `jit` looks at of a concrete array; raises AttributeError for values of another kind."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Names:
    """The private names of JAX that a direct call needs."""

    plain_states: tuple[tuple[Any, Any], ...]
    consume: Any
    replicated: Any


def _look_up() -> _Names | str:
    """The names, or what is missing."""
    try:
        core = importlib.import_module("jax._src.core")
        config = importlib.import_module("jax._src.config")
        api = importlib.import_module("jax._src.api")
        pxla = importlib.import_module("jax._src.interpreters.pxla")
        _jax = importlib.import_module("jax._src.lib")._jax
        mesh = importlib.import_module("jax._src.mesh")
        devices = (mesh if hasattr(mesh, "device_context") else config).device_context
        return _Names(
            (
                (core.trace_state_strong_ref, core.eval_trace),
                (api._post_hook_state, None),
                (devices, devices.get_global()),
            ),
            _jax.ExecuteResults.consume_with_handlers,
            pxla.ExecuteReplicated,
        )
    except (ImportError, AttributeError) as error:
        return str(error)


_NAMES = _look_up()

PLAIN_STATES: tuple[tuple[Any, Any], ...] = () if isinstance(_NAMES, str) else _NAMES.plain_states
"""What `jit` looks at in every call beside its arguments and `trace_settings`, with the ``value``
of each where `jit` does nothing but run the program: no open trace, no check of results (for NaN),
no devices chosen by a context. Empty if programs cannot be called directly."""


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


consume: Callable[[Any, Any], list[jax.Array]]
consume = None if isinstance(_NAMES, str) else _NAMES.consume  # pyright: ignore[reportAssignmentType]
"""See `Executable`."""


def missing() -> str | None:
    """Why no program can be called directly with this JAX; None if they can. Starts JAX."""
    if isinstance(_NAMES, str):
        return _NAMES
    try:
        compiled = jax.jit(operator.neg).lower(jax.numpy.float32(0)).compile()
        _executable_of(compiled, [jax.numpy.float32(0)], _NAMES)
    except AttributeError as error:
        return str(error)
    return None


def executable_of(compiled: Any, inputs: Sequence[jax.Array]) -> Executable | None:
    """How to call `compiled` with inputs of the `kind_of` these; None if `jit` must do it."""
    if isinstance(_NAMES, str):
        return None
    try:
        return _executable_of(compiled, inputs, _NAMES)
    except AttributeError:  # this JAX calls something by another name: see `missing`
        return None


def _executable_of(compiled: Any, inputs: Sequence[jax.Array], names: _Names) -> Executable | None:
    executable = compiled._executable
    call = executable.unsafe_call
    if (
        type(call) is not names.replicated
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
