"""What ``Strategy.run`` does for every strategy; the way of a step into the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replicax.core import nest
from replicax.core.errors import ContextError, DistributedValueError
from replicax.core.options import RunOptions
from replicax.engine.contexts import stack
from replicax.engine.functions.call_site import Prepared
from replicax.engine.functions.function import Function
from replicax.engine.functions.inline import run_inline
from replicax.engine.protocols import StrategyLike
from replicax.engine.trace.frame import current_frame
from replicax.engine.trace.host_loop import compiled_run_of_loop
from replicax.values.leaves import Leaf, leaf_kind

_ON_MESHES = (Leaf.PER_REPLICA, Leaf.MIRRORED)


def run(
    strategy: StrategyLike,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: RunOptions | None,
) -> Any:
    """Runs `fn` on every replica of `strategy`: compiled where that was asked for, else eagerly.

    For what it takes, gives and raises see ``StrategyExtended.run``.
    """
    entry = stack.top()
    if entry is not None and entry.mode in (stack.Mode.MERGE, stack.Mode.UPDATE):
        raise ContextError(
            f"Strategy.run was called inside {stack.describe()}, while the replicas wait. Do "
            "the work in the replica function, before or after merge_call."
        )
    if not callable(fn):
        raise TypeError(f"Strategy.run needs a callable as fn; got {fn!r}.")
    if options is not None and not isinstance(options, RunOptions):
        raise TypeError(f"options of Strategy.run is {options!r}; expected a RunOptions.")
    args, kwargs = _own_values(strategy, args, kwargs)
    if isinstance(fn, Function):
        return fn._run_replicated(strategy, args, kwargs, options)
    compiled_run = compiled_run_of_loop()
    if compiled_run is not None and current_frame() is None:
        return compiled_run(strategy, fn, args, kwargs, options)
    return run_inline(strategy, fn, args, kwargs, options)


def prepare(
    strategy: StrategyLike | None, fn: Function[..., Any], args: tuple[Any, ...], kwargs: Any
) -> Prepared:
    """The program that ``fn(*args, **kwargs)``, or `run` with `strategy`, would launch.

    It is traced, if it was not yet, and kept for the call; nothing is run.

    Raises:
        ContextError: Where there is no such program.
    """
    if strategy is not None:
        stack.require_outside_run(strategy, "explain")
        args, kwargs = _own_values(strategy, args, kwargs)
    return fn._prepare(strategy, args, kwargs)


def _own_values(
    strategy: StrategyLike, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, with what other strategies have mirrored as plain arrays.

    Raises:
        DistributedValueError: If one has components for the replicas of another strategy.
    """
    leaves, structure = nest.flatten((args, kwargs))
    foreign = {
        index: leaf
        for index, leaf in enumerate(leaves)
        if leaf_kind(leaf) in _ON_MESHES and leaf.mesh != strategy.extended.mesh
    }
    if not foreign:
        return args, kwargs
    paths = [path for path, _ in nest.leaves_with_path((args, kwargs))]
    for index, leaf in foreign.items():
        if leaf_kind(leaf) is Leaf.PER_REPLICA:
            raise DistributedValueError(
                f"the argument of run at {paths[index]} has a component for each replica of "
                f"another strategy, on {leaf.mesh.described()}, and not for those of "
                f"{strategy!r}. Distribute the value with the strategy that "
                "runs it, or reduce it first with the one that made it."
            )
    own = [leaf.read_value() if i in foreign else leaf for i, leaf in enumerate(leaves)]
    return nest.unflatten(structure, own)
