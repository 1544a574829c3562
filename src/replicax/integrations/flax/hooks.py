"""What of Flax NNX is replaced, and how: the only place that changes anything in Flax.

==============================  ============================================================
replaced                        so that
==============================  ============================================================
the call of a class of modules  what is created in a scope is distributed
the slots of ``nnx.Variable``   the value of a variable lives in a variable of the strategy
``Pytree.__setattr__``          a compiled step sees ``train()`` and ``eval()``
``Pytree._check_valid_context``  NNX transforms a module inside the trace of a step
``Module.sow``                  what replicas sow is not kept in the module that they share
``Optimizer.update``            gradients are summed, and one update is made
``BatchNorm.__call__``          an empty share of a batch leaves the statistics alone
==============================  ============================================================

``Pytree._find_in_checkpoint`` is added, by which ``replicax.Checkpoint`` saves modules. Outside of
every scope, for objects that are not distributed, everything does what Flax does.
``tests/integrations/flax/test_steps.py`` has a test for each row.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable
from typing import Any

from flax import nnx

from replicax.checkpoint.errors import CheckpointObjectError
from replicax.core import nest
from replicax.core.errors import ContextError
from replicax.engine.contexts import stack
from replicax.engine.functions import foreign_state
from replicax.engine.trace.frame import current_frame
from replicax.integrations.flax import internals, modules, optimizer, variables

_depth: contextvars.ContextVar[int] = contextvars.ContextVar("replicax_nnx_depth", default=0)
_replaced: set[tuple[Any, str]] = set()


def install() -> None:
    """Replaces what the table says; once in a process."""
    if _replaced:
        return
    variables.install()
    nest.keep_whole(nnx.Pytree)
    _replace(internals.TREE_METACLASS, "__call__", _construct)
    _replace(nnx.Pytree, "__setattr__", _set_attribute)
    _replace(nnx.Pytree, "_check_valid_context", _check_valid_context)
    _replace(nnx.Module, "sow", _sow)
    _replace(nnx.Optimizer, "update", optimizer.update)
    _replace(nnx.BatchNorm, "__call__", _batch_norm)
    nnx.Pytree._find_in_checkpoint = _find_in_checkpoint  # pyright: ignore
    foreign_state.accept("flax.nnx", modules.is_distributed)


def _replace(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    setattr(owner, name, replaced)
    _replaced.add((owner, name))


def _construct(original: Callable[..., Any], cls: type, *args: Any, **kwargs: Any) -> Any:
    depth = _depth.set(_depth.get() + 1)
    entry = stack.top()
    in_scope = entry is not None and entry.mode is stack.Mode.SCOPE and stack.has_strategy()
    try:
        # The strategy cuts what it distributes, for which NNX would want a mesh of its own.
        with nnx.use_eager_sharding(False) if in_scope else contextlib.nullcontext():
            made = original(cls, *args, **kwargs)
    finally:
        _depth.reset(depth)
    if _depth.get() > 0 or entry is None or not stack.has_strategy():
        return made
    if entry.mode is stack.Mode.REPLICA:
        modules.note_made_in_step(made)
    elif entry.mode is stack.Mode.SCOPE and current_frame() is None:
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, nnx.Pytree)]
        modules.take_over([made], entry.strategy, parameters_of=[*given, made], is_new=True)
    return made


def _set_attribute(original: Callable[..., Any], node: Any, name: str, value: Any) -> None:
    if name.startswith("__") or not modules.is_known(node):  # NNX captures sown values in the first
        original(node, name, value)
        return
    before = vars(node).get(name)
    entry = stack.top()
    in_step = entry is not None and entry.mode is not stack.Mode.SCOPE and stack.has_strategy()
    if in_step or current_frame() is not None:
        if type(value) is type(before) and value == before:
            return
        raise ContextError(
            f"attribute {name!r} of {type(node).__name__} is set inside a step, where it would "
            "change once and not in each step. Set it before Strategy.run, as model.eval() does; "
            "or take nnx.view(model, deterministic=True) in the step."
        )
    original(node, name, value)
    modules.note_attribute(node, name, value, before)


def _sow(original: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
    entry = stack.top()
    in_step = entry is not None and entry.mode is stack.Mode.REPLICA and stack.has_strategy()
    if in_step and not hasattr(module, "__captures__"):
        raise ContextError(
            f"{type(module).__name__}.sow was called inside a step, where the module is that of "
            "all replicas. Put nnx.capture around the call of the model, which gives what each "
            "replica sows: y, sown = nnx.capture(nnx.Intermediate)(model)(x)."
        )
    return original(module, *args, **kwargs)


def _check_valid_context(original: Callable[..., Any], node: Any, *args: Any) -> None:
    if not modules.is_known(node):
        original(node, *args)


def _batch_norm(original: Callable[..., Any], layer: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    entry = stack.top()
    if x.size == 0 and entry is not None and entry.mode is stack.Mode.REPLICA:
        kwargs["use_running_average"] = True
        args = ()
    return original(layer, x, *args, **kwargs)


def _find_in_checkpoint(node: Any, found: Any, path: str) -> None:
    for parts, variable in nnx.iter_graph(node):
        if isinstance(variable, nnx.Variable):
            key = "/".join(map(str, (path, *parts) if path else parts))
            held = variables.variable_in(variable)
            if held is None:
                raise CheckpointObjectError(
                    f"a checkpoint got an NNX {type(variable).__name__} at {key!r} that is not "
                    "distributed. Give the model to replicax.integrations.flax.distribute(model, "
                    "strategy) first."
                )
            found._add(key, held, None)
