"""Short texts that are equal for equal arrays, by which workers compare what they have."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import numpy as np

_DIGEST_BYTES = 16


def digest(value: Any) -> str:
    """Equal for equal bits, shapes and types."""
    array = on_host(value)
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    found.update(f"{array.shape}{array.dtype}".encode())
    found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def on_host(value: Any) -> np.ndarray:
    """The bits of `value`, which may be random keys."""
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.extended):
        value = jax.random.key_data(value)
    return np.asarray(value)
