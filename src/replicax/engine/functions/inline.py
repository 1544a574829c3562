"""Runs a plain function on every replica, where the code is; looks first for what would go wrong.

A compiled function is looked at when it is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replicax.core.options import RunOptions
from replicax.engine.executors import run_on_replicas
from replicax.engine.functions.foreign_state import refuse_foreign_state
from replicax.engine.protocols import StrategyLike
from replicax.values.whole_batches import notice_whole_batches


def run_inline(
    strategy: StrategyLike,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: RunOptions | None,
) -> Any:
    """Runs `fn` as part of the program being traced, or eagerly outside of one."""
    refuse_foreign_state(fn, args, kwargs)
    notice_whole_batches(args, kwargs, strategy.num_replicas_in_sync)
    return run_on_replicas(strategy, fn, args, kwargs, options)
