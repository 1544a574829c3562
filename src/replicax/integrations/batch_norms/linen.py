"""``flax.linen.BatchNorm`` in a replica without rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flax import linen

from replicax.integrations.batch_norms.replacing import replace_in_replicas


def _call(
    original: Callable[..., Any],
    layer: Any,
    x: Any,
    use_running_average: bool | None = None,
    **kwargs: Any,
) -> Any:
    if x.size or layer.is_initializing():
        return original(layer, x, use_running_average, **kwargs)
    asked = layer.use_running_average
    object.__setattr__(layer, "use_running_average", None)  # Linen takes one of the two, not both
    try:
        return original(layer, x, True, **kwargs)
    finally:
        object.__setattr__(layer, "use_running_average", asked)


replace_in_replicas(linen.BatchNorm, "__call__", _call)
