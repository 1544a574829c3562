"""Which strategy and which replica are in force here; the default ones where none was entered.

What is below asks `engine.contexts.stack`, where there is nothing in force outside of every scope.
"""

from __future__ import annotations

from typing import Any, cast

from replicax.core.errors import ContextError
from replicax.engine.contexts import stack
from replicax.engine.contexts.replica import ReplicaContext
from replicax.engine.eager.solo import SoloPeers
from replicax.strategies.base import Strategy
from replicax.strategies.default import DefaultStrategy

DEFAULT = DefaultStrategy()
"""The strategy in force where none was entered: one replica, ordinary variables."""

ALONE = ReplicaContext._of(DEFAULT, SoloPeers(DEFAULT), is_ambient=True)


def get_strategy() -> Strategy:
    """The current strategy; outside every scope the default one.

    Returns:
        The strategy.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0"])
        >>> with strategy.scope():
        ...     rx.get_strategy() is strategy
        True
    """
    stack.keep_place()
    entry = stack.top()
    return DEFAULT if entry is None else cast(Strategy, entry.strategy)


def get_replica_context() -> Any:
    """The current replica's context, or None in cross-replica context.

    Returns:
        A `ReplicaContext`, or None.

    Example:
        >>> import replicax as rx
        >>> rx.get_replica_context().num_replicas_in_sync
        1
        >>> with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        ...     print(rx.get_replica_context())
        None
    """
    stack.keep_place()
    entry = stack.top()
    if entry is None:
        return ALONE
    return entry.replica_context


def experimental_set_strategy(strategy: Strategy | None) -> None:
    """Makes `strategy` the current one everywhere, without a ``with``; None undoes it.

    Args:
        strategy: The strategy, or None for the default one.

    Raises:
        ContextError: Inside a scope or a run.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0"])
        >>> rx.experimental_set_strategy(strategy)
        >>> rx.get_strategy() is strategy
        True
        >>> rx.experimental_set_strategy(None)
    """
    if stack.has_entered():
        raise ContextError(
            f"experimental_set_strategy was called inside {stack.describe()}. Call it at the top "
            "of the program, outside every `with strategy.scope()` and outside run."
        )
    is_default = strategy is None or strategy.extended._is_default
    stack.choose(None if is_default else strategy)


def experimental_make_numpy_dataset(numpy_input: Any) -> Any:
    """Deprecated: ``data.Dataset.from_tensor_slices``; asks the current strategy.

    Args:
        numpy_input: An array, or a tuple or dict of arrays; a list of arrays is
            stacked into one.

    Returns:
        A dataset with one element for each row.

    Example:
        >>> import replicax.tf as tf
        >>> dataset = tf.data.Dataset.from_tensor_slices([1.0, 2.0])  # what to write instead
    """
    return get_strategy().experimental_make_numpy_dataset(numpy_input)
