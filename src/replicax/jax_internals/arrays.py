"""Arrays: their parts, and the device that they are committed to.

What leaves the library must mix with any other array. JAX refuses to combine arrays committed to
different devices, and has no public way to make an array on a given device uncommitted.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src.array import ArrayImpl
from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]
from jax.core import ShapedArray

# JAX 0.11 and newer have no checks to skip here.
_UNCHECKED = (
    {"_skip_checks": True} if "_skip_checks" in str(xla_client.array_result_handler.__doc__) else {}
)

ConcreteArray = ArrayImpl  # the type of every concrete array; `jax.Array` only abstracts it

is_committed: Callable[[jax.Array], bool]
is_committed = operator.attrgetter("_committed")
"""``array.committed``, without the Python code of that."""


def _uncommitted_handler(example: jax.Array) -> Callable[[Sequence[jax.Array]], jax.Array]:
    """Makes uncommitted arrays like the one-device array `example`, cheaply."""
    (device,) = example.devices()
    return xla_client.array_result_handler(
        example.aval,  # pyright: ignore[reportAttributeAccessIssue]
        jax.sharding.SingleDeviceSharding(device),
        committed=False,
        **_UNCHECKED,
    )


def uncommitted_first(example: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """A function from arrays like `example` to their first copies, uncommitted."""
    handler = _uncommitted_handler(one_device_arrays(example)[0])
    if len(example.devices()) == 1:
        return lambda array: handler([array])
    return lambda array: handler(array._arrays[:1])  # pyright: ignore[reportAttributeAccessIssue]


def uncommitted(array: jax.Array) -> jax.Array:
    """An uncommitted view of the one-device array `array`; the buffer is shared."""
    if not array.committed:
        return array
    if jax.numpy.issubdtype(array.dtype, jax.dtypes.extended):
        data = uncommitted(jax.random.key_data(array))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))
    return _uncommitted_handler(array)([array])


_reshaped_to_scalar = jax.jit(lambda array: array.reshape(()))


def uncommitted_scalar(array: jax.Array) -> jax.Array:
    """The one element of the one-device array `array`, of shape (1,), as an uncommitted scalar.

    A value that is there already goes by way of the host, which takes half as long as a program.
    Does not wait for one that is not.
    """
    if jax.numpy.issubdtype(array.dtype, jax.dtypes.extended) or not array.is_ready():  # pyright: ignore[reportAttributeAccessIssue]
        return uncommitted(_reshaped_to_scalar(array))
    (device,) = array.devices()
    aval, sharding = _scalar_type(array.dtype, device)
    value = np.asarray(array).reshape(())
    return xla_client.batched_device_put(aval, sharding, [value], [device], False)


@functools.lru_cache(maxsize=1024)
def _scalar_type(dtype: Any, device: Any) -> tuple[Any, Any]:
    return ShapedArray((), dtype), jax.sharding.SingleDeviceSharding(device)


def one_device_arrays(array: jax.Array) -> list[jax.Array]:
    """The addressable one-device arrays behind `array`, in mesh order.

    `addressable_data(i)` answers with shard 0 for every i when the array is
    replicated, and `addressable_shards` costs ten times as much.
    """
    if jax.numpy.issubdtype(array.dtype, jax.dtypes.extended):
        data = one_device_arrays(jax.random.key_data(array))
        return [jax.random.wrap_key_data(d, impl=jax.random.key_impl(array)) for d in data]
    return array._arrays  # pyright: ignore[reportAttributeAccessIssue]


def is_deleted(array: Any) -> bool:
    """Whether any of the local parts of a concrete array is deleted.

    ``array.is_deleted()`` looks at the first only. A program that gets such an array ends the
    process.
    """
    parts = getattr(getattr(array, "_base_array", array), "_arrays", ())  # of random keys
    return array.is_deleted() or any(map(ConcreteArray.is_deleted, parts))


def parts_placer(example: jax.Array) -> Callable[[Sequence[Any]], jax.Array]:
    """A function from host arrays, one for each local device, to an array like `example`.

    The arrays must have the shape and dtype of the parts of `example`, in the order of its
    `addressable_devices_indices_map`. `make_array_from_callback` finds out the same things anew in
    every call, which takes longer than the placement itself. Parts that are equal by the layout of
    `example` may come to share the memory of one of them.
    """
    sharding, committed = example.sharding, example.committed
    devices = list(sharding.addressable_devices_indices_map(example.shape))
    aval = example.aval  # pyright: ignore[reportAttributeAccessIssue]
    put = xla_client.batched_device_put
    return lambda parts: put(aval, sharding, parts, devices, committed)
