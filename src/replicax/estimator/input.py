"""What an ``input_fn`` gives, divided among the replicas of a strategy."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import replicax as rx


def batches(
    input_fn: Callable[..., Any], strategy: rx.Strategy, mode: str, config: Any, params: Any
) -> Any:
    """An iterator over the batches of an ``input_fn``, one value for all replicas each.

    With an argument ``input_context`` it is called on every worker and gives batches for one
    replica; otherwise it gives global batches, which are divided.

    Args:
        input_fn: The function.
        strategy: The strategy.
        mode: For its argument of that name.
        config: For its argument of that name.
        params: For its argument of that name.

    Returns:
        A distributed iterator.

    Raises:
        TypeError: If `input_fn` is no function.

    Example:
        >>> import replicax as rx
        >>> list(batches(lambda params: [[1, params]], rx.get_strategy(), "train", None, 2))
        [Array([1, 2], dtype=int32)]
    """
    if not callable(input_fn):
        raise TypeError(f"input_fn is {input_fn!r}; expected a function that returns a dataset.")
    names = inspect.signature(input_fn).parameters
    offered = {"mode": mode, "config": config, "params": params}
    keywords = {name: value for name, value in offered.items() if name in names}
    if "input_context" in names:
        return iter(
            strategy.distribute_datasets_from_function(
                lambda context: input_fn(input_context=context, **keywords)
            )
        )
    return iter(strategy.experimental_distribute_dataset(input_fn(**keywords)))
