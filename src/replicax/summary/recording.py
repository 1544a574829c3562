"""`scalar` and the others: what a user calls, on the host, in a function and in a replica.

In a program that is traced, a value becomes an output of the program beside its results; each
launch hands it, not awaited, to the writer of the calling thread. So a step is never held up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.core.enums import ReduceOp
from replicax.core.errors import ReplicaxError, TraceError
from replicax.engine.contexts import stack
from replicax.engine.protocols import variable_of
from replicax.engine.trace.frame import current_frame
from replicax.jax_internals.traces import is_staging
from replicax.strategies import current
from replicax.summary.steps import step_variable
from replicax.summary.writer import delivery, has_default
from replicax.values.distributed import PerReplica
from replicax.values.operators import plain


class SummaryError(ReplicaxError, ValueError):
    """A summary of something that is none of its kind.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> with rx.summary.create_file_writer(tempfile.mkdtemp()).as_default():
        ...     rx.summary.scalar("losses", [1.0, 2.0], step=0)
        Traceback (most recent call last):
        ...
        replicax.summary.recording.SummaryError: ...
    """


def scalar(name: str, data: Any, step: Any = None, description: str | None = None) -> None:
    """Records one number for a step.

    In a replica the mean over all replicas is recorded, once. In a compiled function the number
    is written after each launch, and nobody waits for it.

    Args:
        name: What to call it.
        data: A number, or an array without dims.
        step: The step; that of `set_step` or ``as_default`` if None.
        description: Accepted because it is documented.

    Raises:
        SummaryError: If `data` has dims.
        TraceError: Inside a loop, a branch or vmap of a compiled function.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> step = rx.function(lambda x: rx.summary.scalar("mean", x.mean()))
        >>> with rx.summary.create_file_writer(tempfile.mkdtemp()).as_default(step=1):
        ...     strategy.run(step, args=(strategy.distribute_batch([1.0, 2.0, 3.0, 4.0]),))
    """
    del description

    def check(array: Any) -> None:
        if array.ndim:
            raise SummaryError(
                f"summary.scalar {name!r} got shape {array.shape}; expected one number. Reduce it, "
                "or use summary.histogram."
            )

    _record("scalar", name, data, step, {}, check, lambda leaf, many: many.mean(leaf))


def histogram(
    name: str,
    data: Any,
    step: Any = None,
    buckets: int | None = None,
    description: str | None = None,
) -> None:
    """Records how the elements of an array are distributed; in a replica those of all replicas.

    Args:
        name: What to call it.
        data: An array.
        step: As for `scalar`.
        buckets: How many buckets there are; 30 if None.
        description: Accepted because it is documented.

    Raises:
        TraceError: As for `scalar`.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import replicax as rx
        >>> with rx.summary.create_file_writer(tempfile.mkdtemp()).as_default():
        ...     rx.summary.histogram("weights", np.arange(10.0), step=0)
    """
    del description
    options = {"buckets": 30 if buckets is None else buckets}
    _record(
        "histogram", name, data, step, options, lambda array: None,
        lambda leaf, many: many.all_of(jnp.ravel(leaf)),
    )  # fmt: skip


def image(
    name: str,
    data: Any,
    step: Any = None,
    max_outputs: int = 3,
    description: str | None = None,
) -> None:
    """Records some pictures; in a replica the first ones of all replicas.

    Args:
        name: What to call them.
        data: An array of shape (pictures, height, width, channels): numbers from 0 to 1, or uint8.
        step: As for `scalar`.
        max_outputs: How many of them to write.
        description: Accepted because it is documented.

    Raises:
        SummaryError: If `data` has another number of dims.
        TraceError: As for `scalar`.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import replicax as rx
        >>> with rx.summary.create_file_writer(tempfile.mkdtemp()).as_default():
        ...     rx.summary.image("digits", np.zeros((2, 8, 8, 1)), step=0)
    """
    del description

    def check(array: Any) -> None:
        if array.ndim != 4 or array.shape[-1] not in (1, 3, 4):
            raise SummaryError(
                f"summary.image {name!r} got shape {array.shape}; expected (pictures, height, "
                "width, channels) with 1, 3 or 4 channels."
            )

    options = {"max_outputs": max_outputs}
    _record("image", name, data, step, options, check, lambda leaf, many: many.all_of(leaf))


def text(name: str, data: str, step: Any = None, description: str | None = None) -> None:
    """Records a text, which TensorBoard shows as Markdown; on the host only.

    Args:
        name: What to call it.
        data: The text.
        step: As for `scalar`.
        description: Accepted because it is documented.

    Raises:
        TraceError: In a compiled function, where there are no texts.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> with rx.summary.create_file_writer(tempfile.mkdtemp()).as_default():
        ...     rx.summary.text("setup", "SGD with **momentum**", step=0)
    """
    del description
    if current_frame() is not None or is_staging():
        raise TraceError(
            f"summary.text {name!r} was called inside a function that is being compiled, which "
            "computes numbers. Call it between the steps."
        )
    step, more = _step_of(step)
    delivery("text", name, step, {})((np.asarray(str(data)), *more))


# -- from the replicas to the writer -------------------------------------------------------------


class _Many:
    """How values of all replicas become one: by the verbs of whoever speaks here."""

    def __init__(self, mean: Callable[[Any], Any], all_of: Callable[[Any], Any]) -> None:
        self.mean = mean
        self.all_of = all_of


_ONE = _Many(lambda leaf: leaf, lambda leaf: leaf)


def _record(
    kind: str,
    name: str,
    data: Any,
    step: Any,
    options: dict[str, Any],
    check: Callable[[Any], None],
    combine: Callable[[Any, _Many], Any],
) -> None:
    frame, entry = current_frame(), stack.top()
    if frame is None and not has_default():
        return
    _require_own_level(kind, name, frame)
    known, more = _step_of(step)
    is_replica = entry is not None and entry.mode is stack.Mode.REPLICA
    if isinstance(data, PerReplica):
        strategy = current.get_strategy()
        value = combine(
            data,
            _Many(
                lambda leaf: strategy.reduce(ReduceOp.MEAN, leaf, axis=None),
                lambda leaf: strategy.gather(leaf, axis=0),
            ),
        )
    else:
        value = plain(data)
        value = value if hasattr(value, "ndim") else np.asarray(value)
        check(value)
        if frame is not None or is_replica:
            value = jax.lax.stop_gradient(jnp.asarray(value))
        if is_replica and entry is not None and entry.strategy.num_replicas_in_sync > 1:
            context = entry.replica_context
            value = combine(
                value,
                _Many(
                    lambda leaf: context.all_reduce(ReduceOp.MEAN, leaf),
                    lambda leaf: context.all_gather(leaf, axis=0),
                ),
            )
            if frame is None and int(context.replica_id_in_sync_group):
                return  # replica 0 writes what all have
    deliver = delivery(kind, name, known, options)
    if frame is None:
        deliver((jax.lax.stop_gradient(plain(value)), *more))
    else:
        frame.asides.append((deliver, (value, *more)))


def _step_of(step: Any) -> tuple[int | None, tuple[Any, ...]]:
    """The step if it is an int, or else the array that has it."""
    step = variable_of(step)
    if step is None:
        found = step_variable()
        return None, (() if found is None else (found.read_value(),))
    if isinstance(step, int):
        return step, ()
    return None, (jnp.asarray(plain(step)),)


def _require_own_level(kind: str, name: str, frame: Any) -> None:
    inside = is_staging() if frame is None else not frame.is_own_level()
    if inside:
        raise TraceError(
            f"summary.{kind} {name!r} was reached inside jax.jit, lax.scan, lax.cond, "
            "jax.checkpoint or jax.vmap, where a value does not leave the trace. Return the value, "
            "and record it outside."
        )
