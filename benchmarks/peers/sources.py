"""What W6 reads and W10 varies, for every peer: batches that are ready, or take a while."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import problems

NUM_BATCHES = 8
WAIT_SECONDS = 0.002
HIDDEN = 64
RATE = 0.1
SLOW = ("waiting", "decompressing")
"""A source that waits (as for a disk) needs no core, one that decompresses needs one."""

Make = Callable[[int], np.ndarray]


def maker(variant: str) -> Make:
    """Makes the batch of a number from 0 to `NUM_BATCHES`."""
    ready = problems.ready_batches()
    if variant == "waiting":

        def wait(index: int) -> np.ndarray:
            time.sleep(WAIT_SECONDS)
            return ready[index].copy()

        return wait
    if variant == "decompressing":
        packed = [zlib.compress(batch.tobytes(), level=1) for batch in ready]
        return lambda index: np.frombuffer(zlib.decompress(packed[index]), np.float32).reshape(
            problems.BATCH_SHAPE
        )
    return lambda index: ready[index]


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array whose values are not set, and which the CPU adopts without a copy."""
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.__array_interface__["data"][0] % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """A copy that the CPU adopts without another one."""
    copied = aligned(array.shape, array.dtype)
    np.copyto(copied, array)
    return copied


def read_corner(batch: jax.Array) -> float:
    """One number of a batch, to see that it is the right one."""
    return float(np.asarray(batch.addressable_data(0))[0, 0])


def weights() -> np.ndarray:
    """What the step after each batch trains."""
    return np.full((problems.BATCH_SHAPE[1], HIDDEN), 0.01, np.float32)


def loss(w: Any, x: jax.Array) -> jax.Array:
    """Of the step after each batch."""
    return jnp.mean(jnp.tanh(x @ w) ** 2)


def dispatch_sizes(variant: str) -> tuple[int, int]:
    """Numbers of variables and of arguments, from a name such as ``10 variables``."""
    number, kind = variant.split()
    return (int(number), 1) if kind == "variables" else (1, int(number))
