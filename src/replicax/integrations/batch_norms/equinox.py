"""``equinox.nn.BatchNorm`` in a replica without rows, and in a compiled step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox
import jax
import jax.numpy as jnp
from jax import lax

from replicax.engine.trace.frame import current_frame
from replicax.integrations.batch_norms.replacing import replace_in_replicas


def _call(original: Callable[..., Any], layer: Any, x: Any, state: Any, **kwargs: Any) -> Any:
    # Its rows are those of the vmap around it.
    if x.size == 0 or lax.axis_size(layer.axis_name) == 0:
        kwargs["inference"] = True
    return original(layer, x, state, **kwargs)


def _set(original: Callable[..., Any], state: Any, item: Any, value: Any) -> Any:
    """Sets a constant, such as that the first batch was seen, with the layout of what was there.

    In a program for several devices JAX has the layout in the type of a value, and Equinox takes
    values of two types for different ones.
    """
    if current_frame() is not None:
        old = state.get(item)
        if jax.tree.structure(old) == jax.tree.structure(value):
            value = jax.tree.map(_laid_out_as, value, old)
    return original(state, item, value)


def _laid_out_as(new: Any, old: Any) -> Any:
    if jnp.shape(new) != jnp.shape(old) or jnp.result_type(new) != jnp.result_type(old):
        return new
    return lax.select(lax.full_like(old, True, dtype=bool), jnp.asarray(new), old)


replace_in_replicas(equinox.nn.BatchNorm, "__call__", _call)
replace_in_replicas(equinox.nn.State, "set", _set)
