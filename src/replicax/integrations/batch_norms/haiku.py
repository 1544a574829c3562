"""``haiku.BatchNorm`` in a replica without rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import haiku

from replicax.integrations.batch_norms.replacing import replace_in_replicas


def _call(
    original: Callable[..., Any],
    layer: Any,
    inputs: Any,
    is_training: bool,
    test_local_stats: bool = False,
    *args: Any,
    **kwargs: Any,
) -> Any:
    if inputs.size == 0 and not haiku.running_init():
        is_training = test_local_stats = False
    return original(layer, inputs, is_training, test_local_stats, *args, **kwargs)


replace_in_replicas(haiku.BatchNorm, "__call__", _call)
