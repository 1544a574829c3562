"""Runs a function on every replica where the code is: in the trace in progress, or eagerly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replicax.core import nest, notices
from replicax.core.errors import ContextError, DistributedValueError
from replicax.core.options import RunOptions
from replicax.engine.compiled.capture import run_traced
from replicax.engine.eager.run import run_eagerly
from replicax.engine.protocols import StrategyLike
from replicax.engine.trace.frame import current_frame
from replicax.jax_internals.traces import is_transforming
from replicax.values.distributed import PerReplica

_DEFAULT_OPTIONS = RunOptions()


def run_on_replicas(
    strategy: StrategyLike,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: RunOptions | None,
) -> Any:
    """Runs `fn` as part of the program being traced, or eagerly outside of one.

    Raises:
        ContextError: Inside a transformation of JAX that Replicax did not start.
        DistributedValueError: If components are uneven and the options refuse that.
    """
    frame = current_frame()
    if frame is None and is_transforming():
        raise ContextError(
            "Strategy.run was called inside a JAX transformation (jit, grad, vmap, scan) that "
            "Replicax did not start. Use replicax.function instead of jax.jit, and take "
            "gradients inside the replica function."
        )
    options = options or _DEFAULT_OPTIONS
    _check_options(options, (args, kwargs))
    if frame is not None:
        return run_traced(strategy, fn, args, kwargs, frame=frame, options=options)
    if options.experimental_xla_options:
        notices.notify_once(
            "eager xla options",
            "RunOptions.experimental_xla_options has no effect on an eager run: there is no "
            "program to compile. Put replicax.function around the function.",
        )
    return run_eagerly(strategy, fn, args, kwargs)


def _check_options(options: RunOptions, arguments: Any) -> None:
    """Applies the options that concern arguments."""
    if options.experimental_bucketizing_dynamic_shape:
        notices.notify_once(
            "bucketizing",
            "RunOptions(experimental_bucketizing_dynamic_shape=True) changes nothing here: "
            "programs are compiled for the true shapes.",
        )
    if options.experimental_enable_dynamic_batch_size:
        return
    for leaf in nest.flatten(arguments)[0]:
        if isinstance(leaf, PerReplica) and leaf._is_uneven:
            raise DistributedValueError(
                f"components have different shapes {list(leaf.shapes)}, and "
                "RunOptions(experimental_enable_dynamic_batch_size=False) refuses that. Drop the "
                "partial batch, pad it, or allow dynamic batch sizes."
            )
