"""Puts host values and arrays onto the devices of the replicas, and takes them off again.

What comes in is copied, so that no buffer is shared with the caller; what goes
out is an uncommitted one-device array that mixes with any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding

from replicax.backend.mesh import ReplicaMesh
from replicax.core.errors import BatchError, DeletedValueError
from replicax.core.typing import Device
from replicax.jax_internals.arrays import (
    is_deleted,
    one_device_arrays,
    uncommitted,
)

HostArray = np.ndarray | np.generic
Arrays = (jax.Array, np.ndarray, np.generic)


def is_array_like(value: object) -> bool:
    """Whether `value` is an array or a number that JAX can hold."""
    if isinstance(value, jax.Array):
        return True
    if isinstance(value, HostArray):
        return value.dtype.kind in "biufc" or jnp.issubdtype(value.dtype, jnp.floating)
    return isinstance(value, (bool, int, float, complex))


_WIDE = frozenset(map(np.dtype, ("int64", "uint64", "float64", "complex128")))

TURN_ON_X64 = (
    "Turn 64-bit types on with jax.config.update('jax_enable_x64', True), or here with "
    "`with jax.enable_x64(True):`"
)


def is_too_wide(dtype: Any) -> bool:
    """Whether JAX would narrow arrays of `dtype` without a word: 64-bit types are off."""
    return dtype in _WIDE and not jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]


def are_same(arrays: Sequence[Any]) -> bool:
    """Whether all arrays have one shape, one dtype and the same bits, wherever they are.

    Example:
        >>> are_same([np.float32(0.0), jnp.float32(0.0)]), are_same([np.zeros(1), -np.zeros(1)])
        (True, False)
    """
    first = arrays[0]
    others = [array for array in arrays if array is not first]
    if any(isinstance(array, Tracer) for array in arrays) and others:
        return False
    bits = _bits(first) if others else None
    return all(_bits(other) == bits for other in others)


def _bits(array: Any) -> tuple[Any, ...]:
    dtype = array.dtype
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        array = jax.random.key_data(array)
    return array.shape, dtype, np.asarray(array).tobytes()


def narrowed(value: Any, leaf: str) -> Any:
    """`value` with the dtype JAX will give it; 64-bit host values are checked first.

    Args:
        value: An array or a number.
        leaf: What to call it in an error.

    Raises:
        BatchError: If the value does not fit the narrower type, or is a 64-bit array of JAX.
    """
    if isinstance(value, jax.Array):
        require_width(value.dtype, leaf)
        return value
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    if array.dtype.itemsize < 8 or array.dtype.kind not in "iufc":
        return array
    target = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    if target == array.dtype or array.size == 0:
        return array
    if array.dtype.kind in "iu":
        info = np.iinfo(target)
        low, high = array.min(), array.max()
        if low < info.min or high > info.max:
            raise BatchError(
                _does_not_fit(leaf, array.dtype, target, high if high > info.max else low)
            )
    else:
        finite = array[np.isfinite(array)]
        largest = np.abs(finite).max(initial=0.0)
        if largest > np.finfo(target).max:
            raise BatchError(_does_not_fit(leaf, array.dtype, target, largest))
    return array.astype(target)


def require_width(dtype: Any, leaf: str) -> None:
    """Raises if `leaf` is an array of JAX that was made while 64-bit types were on, and are not.

    Raises:
        BatchError: If so.
    """
    if is_too_wide(dtype):
        raise BatchError(
            f"{leaf} has dtype {dtype}, made while 64-bit types were on. They are off now, and JAX "
            f"would cut it to 32 bits. {TURN_ON_X64}, or convert it while they are on."
        )


def _does_not_fit(leaf: str, dtype: np.dtype, target: np.dtype, value: Any) -> str:
    return (
        f"{leaf} has dtype {dtype} and holds {value}, which does not fit {target}, the type JAX "
        f"uses while 64-bit types are off. Turn them on with "
        f"jax.config.update('jax_enable_x64', True), or convert the data."
    )


def own_copy(value: Any, device: Device) -> jax.Array:
    """A one-device array on `device` that shares its buffer with nobody."""
    if isinstance(value, jax.Array):
        if jnp.issubdtype(value.dtype, jax.dtypes.extended):
            data = own_copy(jax.random.key_data(value), device)
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
        if device.platform != "cpu":
            if value.devices() == {device}:
                return jnp.array(value, copy=True)
            return jax.device_put(value, device)
    # device_put adopts an aligned host buffer without copying, so it gets one of its own.
    return jax.device_put(np.array(value, copy=True), device)


def in_own_buffers(array: jax.Array) -> jax.Array:
    """A copy of `array` on the same devices, made there; waits for nothing."""
    return jax.device_put(array, array.sharding if array.committed else None, may_alias=False)


def replicate(value: Any, mesh: ReplicaMesh) -> jax.Array:
    """One array with a copy of its own on every device of the mesh.

    Where other processes have some of the devices, each of them brings its own copies.
    """
    copies = [own_copy(value, device) for device in mesh.local_devices]
    return joined(copies, copies[0].shape, mesh, mesh.replicated)


def joined(
    parts: Sequence[jax.Array], shape: tuple[int, ...], mesh: ReplicaMesh, layout: NamedSharding
) -> jax.Array:
    """One array of `shape` out of one-device arrays, one on each local device of the mesh."""
    if mesh.is_default:
        return uncommitted(parts[0])
    if mesh.num_logical_devices > 1:
        parts = _on_logical_devices(parts, mesh)
    return jax.make_array_from_single_device_arrays(shape, layout, parts)


def _on_logical_devices(parts: Sequence[jax.Array], mesh: ReplicaMesh) -> list[jax.Array]:
    """A copy of each replica's part on every one of its logical devices."""
    return [
        jax.device_put(part, device)
        for part, row in zip(parts, mesh.local_logical_devices, strict=True)
        for device in row
    ]


def parts_of(array: jax.Array, mesh: ReplicaMesh | None) -> Sequence[jax.Array]:
    """The one-device arrays behind `array`, one for each replica of this worker."""
    shards = one_device_arrays(array)
    if mesh is None or mesh.num_logical_devices == 1:
        return shards
    return shards[:: mesh.num_logical_devices]


def assemble(components: Sequence[Any], mesh: ReplicaMesh) -> jax.Array:
    """One array of equal-shaped components: concatenated on dim 0, scalars stacked.

    Takes the components of the local replicas, which are all unless there are other processes.
    """
    placed = [
        _on_device(component, device)
        for component, device in zip(components, mesh.local_devices, strict=True)
    ]
    shape = placed[0].shape
    if not shape:
        placed = [jnp.reshape(component, (1,)) for component in placed]
        shape = (1,)
    if mesh.num_logical_devices > 1:
        placed = _on_logical_devices(placed, mesh)
    return jax.make_array_from_single_device_arrays(
        (shape[0] * mesh.num_replicas, *shape[1:]), mesh.per_replica, placed
    )


def _on_device(value: Any, device: Device) -> jax.Array:
    if isinstance(value, jax.Array):
        return jax.device_put(value, device)
    return jax.device_put(np.array(value, copy=True), device)


def mirror(copies: Sequence[jax.Array], mesh: ReplicaMesh) -> jax.Array:
    """One replicated array out of equal one-device arrays, one on each local device."""
    placed = [jax.device_put(c, d) for c, d in zip(copies, mesh.local_devices, strict=True)]
    if mesh.num_logical_devices > 1:
        placed = _on_logical_devices(placed, mesh)
    return jax.make_array_from_single_device_arrays(placed[0].shape, mesh.replicated, placed)


def one_device(array: jax.Array) -> jax.Array:
    """The first copy of a replicated (or one-device) array, uncommitted."""
    return uncommitted(one_device_arrays(array)[0])


def uncommitted_argument(value: Any, name: Callable[[], str] = "an argument".__str__) -> Any:
    """`value`, freed from the device it is committed to, so that any mesh may take it.

    Raises:
        DeletedValueError: If it has been deleted, in part or in whole; `name` says what it is.
    """
    if isinstance(value, Tracer) or not isinstance(value, jax.Array):
        return value
    if is_deleted(value):
        raise DeletedValueError(
            f"{name()} cannot be used: it is gone, or a part of it. Array has been deleted, or "
            "donated to a jitted function. Give away a copy, such as jnp.copy(x), or make it anew."
        )
    if value.committed and len(value.devices()) == 1:
        return uncommitted(one_device_arrays(value)[0])
    return value
