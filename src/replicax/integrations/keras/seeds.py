"""Random numbers that differ between replicas, the same ones in every run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from replicax.integrations.keras import shares

_SPREAD = 0x9E3779B9  # odd, so that every replica gets a number of its own


def next_seed(original: Callable[..., Any], generator: Any, *args: Any, **kwargs: Any) -> Any:
    """What ``SeedGenerator.next`` does: replica 0 draws what one device would."""
    seed = original(generator, *args, **kwargs)
    if not shares.is_one_of_many():
        return seed
    replica_id = jnp.asarray(shares.replica_context().replica_id_in_sync_group)
    salt = replica_id.astype(jnp.uint32) * jnp.uint32(_SPREAD)
    return seed.at[0].set(seed[0] ^ salt.astype(seed.dtype))
