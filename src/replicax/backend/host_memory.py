"""Host memory: what the CPU's devices use as it is, sums in it, and what is given back.

The devices of a CPU share its memory, so the components of a large value can be added where they
are. A program would copy them: XLA maps buffers of this size afresh in every execution, page by
page, while NumPy asks for large pages. ``values.reduce`` and ``input`` are the callers.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence

import jax
import numpy as np

from replicax.core.typing import Device
from replicax.jax_internals.arrays import parts_placer, uncommitted

ALIGNMENT = 64
"""Of the buffers that the CPU client adopts, in bytes."""

MIN_BYTES = 2**20
"""Of a component. A sum here waits for the value, which matters more for smaller ones."""

MAX_READY_BYTES = 2**12
"""Of a component that is computed already. To launch a program takes longer than to add these."""

_CHUNK = 2**16
_DTYPES = frozenset(np.dtype(name) for name in ("float32", "float64", "int32", "int64"))


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array whose values are not set, and which the CPU client adopts.

    Example:
        >>> aligned((2, 3), np.dtype(np.float32)).shape
        (2, 3)
    """
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGNMENT  # .ctypes.data is slow
    return memory[start : start + size].view(dtype).reshape(shape)


def can_add(parts: Sequence[jax.Array]) -> bool:
    """Whether one-device arrays of one shape are on the CPU, and large enough to be added here."""
    first = parts[0]
    return first.nbytes >= MIN_BYTES and first.dtype in _DTYPES and _are_on_cpu(parts)


def _are_on_cpu(parts: Sequence[jax.Array]) -> bool:
    return all(device.platform == "cpu" for part in parts for device in part.devices())


def total(parts: Sequence[jax.Array], *, divisor: int = 1) -> jax.Array:
    """The sum of one-device arrays, in their order, where the first of them is; uncommitted.

    Args:
        parts: At least two arrays, for which `can_add` holds.
        divisor: What the sum is divided by.

    Example:
        >>> import jax.numpy as jnp
        >>> total([jnp.array([1.0, 2.0]), jnp.array([3.0, 6.0])], divisor=2)
        Array([2., 4.], dtype=float32)
    """
    jax.block_until_ready(parts)
    flat = [np.from_dlpack(part).reshape(-1) for part in parts]  # pyright: ignore[reportArgumentType]
    result = aligned(parts[0].shape, parts[0].dtype)
    out = result.reshape(-1)
    with np.errstate(all="ignore"):  # an infinity is a result here as on any device
        for start in range(0, out.size, _CHUNK):  # so that what is added to is still in the cache
            here = slice(start, start + _CHUNK)
            chunk = out[here]
            np.add(flat[0][here], flat[1][here], out=chunk)
            for part in flat[2:]:
                np.add(chunk, part[here], out=chunk)
            if divisor != 1:
                np.divide(chunk, divisor, out=chunk)
    (device,) = parts[0].devices()
    return _placer(parts[0].shape, parts[0].dtype, device)([result])


_SMALLEST, _LARGEST = 2.0**-80, 2.0**80


def total_if_ready(
    parts: Sequence[jax.Array], shape: tuple[int, ...], *, divisor: int = 1
) -> jax.Array | None:
    """The sum of small arrays that are there already; None if a program should add them.

    The bits are those of the program, or they would depend on how soon a value is asked for. XLA
    takes the smallest floats for 0 and may change the bits of a NaN, so a program adds such values.

    Args:
        parts: At least two one-device arrays of one shape.
        shape: Of the result.
        divisor: What the sum is divided by.

    Example:
        >>> import jax.numpy as jnp
        >>> parts = [jnp.array([1.0]), jnp.array([3.0])]
        >>> total_if_ready(jax.block_until_ready(parts), (), divisor=2)
        Array(2., dtype=float32)
    """
    first = parts[0]
    dtype = first.dtype
    if first.nbytes > MAX_READY_BYTES or dtype not in _DTYPES or not _are_on_cpu(parts):
        return None
    if not all(part.is_ready() for part in parts):  # pyright: ignore[reportAttributeAccessIssue]
        return None
    values = np.array([*map(np.asarray, parts)])
    if dtype.kind == "f":
        sizes = np.abs(values)
        if not (((sizes >= _SMALLEST) & (sizes <= _LARGEST)) | (sizes == 0)).all():
            return None
    result = functools.reduce(np.add, values) + dtype.type(0)  # the sum of -0 is 0 on devices
    if divisor != 1:
        result *= dtype.type(1) / dtype.type(divisor)  # as XLA divides by a constant
    (device,) = first.devices()
    return _placer(shape, dtype, device)([result.reshape(shape)])


@functools.lru_cache(maxsize=64)
def _placer(
    shape: tuple[int, ...], dtype: np.dtype, device: Device
) -> Callable[[Sequence[np.ndarray]], jax.Array]:
    """Gives a host array of this shape to the device, which keeps it as it is; uncommitted."""
    example = jax.device_put(np.zeros(shape, dtype), device)
    return parts_placer(uncommitted(example))


def give_back_free() -> None:
    """Returns memory to the system that was freed in this process, where the C library keeps it.

    A compiler frees hundreds of megabytes in small pieces. The buffers of the program that it has
    made are new mappings, so without this both would be there at the same time.
    """
    trim = _trimmer()
    if trim is not None:
        trim(0)


@functools.cache
def _trimmer() -> Callable[[int], int] | None:
    """``malloc_trim`` of glibc; other C libraries give memory back by themselves."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # TypeError: Windows has no library of that name
        return None
