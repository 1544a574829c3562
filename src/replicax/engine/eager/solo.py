"""The peers of a replica that is alone: merging is calling, reducing is converting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from replicax.backend import collectives
from replicax.core import nest
from replicax.core.enums import ReduceOp
from replicax.engine.contexts import stack
from replicax.engine.eager.peers import require_concrete
from replicax.engine.protocols import StrategyLike
from replicax.values.operators import plain
from replicax.values.reduce import check_gather


class SoloPeers:
    """Implements `engine.contexts.replica.Peers` for one replica."""

    replica_id = 0

    def __init__(self, strategy: StrategyLike) -> None:
        """Peers of the only replica of `strategy`."""
        self._strategy = strategy

    def merge(
        self, merge_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs `merge_fn` at once, in cross-replica context."""
        self._check("merge_call", under_grad=False)
        with stack.entered(stack.Entry(self._strategy, stack.Mode.MERGE)):
            return merge_fn(self._strategy, *args, **kwargs)

    def together(
        self,
        label: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        own: Any = None,
        alone: Callable[[], Any] | None = None,
    ) -> Any:
        """Runs `fn` at once, in cross-replica context."""
        del alone
        self._check(label)
        with stack.entered(stack.Entry(self._strategy, stack.Mode.MERGE)):
            return fn(*args) if own is None else fn({}, *args)

    def all_reduce(self, op: ReduceOp, value: Any, options: Any) -> Any:
        """The values themselves, as arrays with the dtype of the reduction."""
        del options
        self._check("all_reduce")
        return reduced_alone(op, value)

    def all_gather(self, value: Any, axis: int) -> Any:
        """The values themselves."""
        self._check("all_gather")

        def gathered(leaf: Any) -> jax.Array:
            array = jnp.asarray(plain(leaf))
            check_gather(axis, [array.shape])
            return array

        return nest.map_leaves(gathered, value)

    def _check(self, call: str, *, under_grad: bool = True) -> None:
        """Where the strategy may also run with more replicas, holds to the rules of those."""


class EagerSoloPeers(SoloPeers):
    """The same in an eager run of a strategy, where meetings need concrete values."""

    def _check(self, call: str, *, under_grad: bool = True) -> None:
        require_concrete(call, under_grad=under_grad)


def reduced_alone(op: ReduceOp, value: Any) -> Any:
    """What one replica alone makes of a reduction: arrays with the dtype of the result."""

    def reduced(leaf: Any) -> jax.Array:
        array = jnp.asarray(plain(leaf))
        return array.astype(_reduced_dtype(op, array.dtype))

    return nest.map_leaves(reduced, value)


def _reduced_dtype(op: ReduceOp, dtype: Any) -> Any:
    if op is ReduceOp.MEAN:
        return collectives.as_mean_dtype(dtype)
    return jnp.int32 if dtype == jnp.bool_ else dtype
