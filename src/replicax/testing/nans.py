"""Finds NaN: in which variable or value, on which replica, after which step."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np

from replicax.core.errors import CheckError
from replicax.strategies.base import Strategy
from replicax.testing.snapshot import named_leaves, named_variables, require_values
from replicax.values.distributed import DistributedValues


@dataclasses.dataclass(frozen=True, slots=True)
class NanFinding:
    """Where there is NaN.

    Attributes:
        name: The variable or value.
        replica_ids: The replicas that have NaN there; empty if it is not distributed.
        num_replicas: How many replicas there are.
        index: The first element that is NaN, on the first such replica.
        num_nan: How many elements are, there.
        size: How many elements there are.

    Example:
        >>> import replicax as rx
        >>> finding = find_nan({"loss": jnp.log(jnp.array([1.0, -1.0]))})
        >>> finding.name, finding.index
        ("the value at ['loss']", (1,))
    """

    name: str
    replica_ids: tuple[int, ...]
    num_replicas: int
    index: tuple[int, ...]
    num_nan: int
    size: int

    def __str__(self) -> str:
        if not self.replica_ids:
            where = ""
        elif len(self.replica_ids) == self.num_replicas > 1:
            where = f" on all {self.num_replicas} replicas"
        elif len(self.replica_ids) == 1:
            where = f" on replica {self.replica_ids[0]}"
        else:
            where = f" on replicas {list(self.replica_ids)}"
        at = f" at {list(self.index)}" if self.index else ""
        return f"{self.name} is NaN{where}{at} ({self.num_nan} of {self.size} elements)"


def find_nan(target: Any) -> NanFinding | None:
    """The first variable or value with NaN, and the replicas that have it; None if there is none.

    NaN that a reduction has spread is on all replicas of a variable. To see where
    it came from, look at what the replicas had before: return losses or gradients
    from ``run`` and pass the result.

    Args:
        target: A strategy, for all its variables; or a nest of variables, arrays
            and results of ``run``.

    Returns:
        The finding, or None.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> batch = strategy.distribute_batch([1.0, -1.0])
        >>> losses = strategy.run(lambda x: jnp.log(x), args=(batch,))
        >>> print(find_nan({"loss": losses}))
        the value at ['loss'] is NaN on replica 1 at [0] (1 of 1 elements)
    """
    require_values("find_nan")
    if isinstance(target, Strategy):
        return _first_nan(named_variables(target))
    return _first_nan(named_leaves(target))


def nan_checked(fn: Callable[..., Any], strategy: Strategy) -> Callable[..., Any]:
    """`fn`, made to raise at the first call that brings, gives or leaves NaN.

    For debugging: every call waits for the devices and copies everything to the
    host. `fn` is a step as the training loop calls it, outside ``run``; its
    arguments, its result and then all variables of `strategy` are looked at.

    Args:
        fn: A function or a compiled ``function``.
        strategy: The strategy whose variables it writes.

    Returns:
        The function that checks.

    Raises:
        CheckError: From the returned function: an AssertionError that names the
            call, the first value or variable with NaN, and the replicas.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     w = rx.Variable(1.0, name="w", aggregation=rx.VariableAggregation.SUM)
        >>> @rx.function
        ... def step(x):
        ...     strategy.run(lambda x: w.assign_sub(jnp.log(x).sum()), args=(x,))
        >>> step = nan_checked(step, strategy)
        >>> step(strategy.distribute_batch([1.0, 1.0]))
        >>> step(strategy.distribute_batch([1.0, -1.0]))
        Traceback (most recent call last):
        ...
        replicax.core.errors.CheckError: call 2 of step: variable 'w' is NaN on all 2 replicas...
    """
    numbers = itertools.count(1)
    label = getattr(fn, "__name__", repr(fn))

    @functools.wraps(fn)
    def checked(*args: Any, **kwargs: Any) -> Any:
        require_values("nan_checked")
        call = f"call {next(numbers)} of {label}"
        _raise_if(find_nan(strategy), f"before {call}")
        _raise_if(find_nan((args, kwargs)), f"{call}, in its arguments")
        result = fn(*args, **kwargs)
        _raise_if(find_nan(result), f"{call}, in its result")
        _raise_if(find_nan(strategy), call)
        return result

    return checked


def _raise_if(finding: NanFinding | None, where: str) -> None:
    if finding is None:
        return
    spread = len(finding.replica_ids) == finding.num_replicas > 1
    then = (
        " A reduction spread it: return each replica's loss and gradients from run to see where "
        "it began."
    )
    raise CheckError(f"{where}: {finding}.{then if spread else ''}")


def _first_nan(leaves: Iterable[tuple[str, Any]]) -> NanFinding | None:
    for name, leaf in leaves:
        is_distributed = isinstance(leaf, DistributedValues)
        parts = leaf.values if is_distributed else (leaf,)  # pyright: ignore
        masks = [_nan_mask(part) for part in parts]
        found = [index for index, mask in enumerate(masks) if mask is not None and mask.any()]
        if found:
            mask = masks[found[0]]
            assert mask is not None
            return NanFinding(
                name,
                tuple(found) if is_distributed else (),
                len(parts),
                tuple(map(int, np.argwhere(mask)[0])),
                int(np.count_nonzero(mask)),
                mask.size,
            )
    return None


def _nan_mask(value: Any) -> np.ndarray | None:
    """Which elements are NaN; None for what has no floats."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        if not isinstance(value, (float, complex)):
            return None
    elif not jnp.issubdtype(dtype, jnp.inexact):
        return None
    return np.isnan(np.asarray(value))
