"""Operations whose documented signature differs from that of ``jax.numpy``.

Thin: each converts its arguments to arrays, calls one JAX function and returns a
strongly typed array. `name` is accepted and has no effect. Python floats and
ints become float32 and int32, as documented; what does not fit raises.
"""

from __future__ import annotations

import contextlib
import functools
import typing
from collections import abc

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer as _Tracer

from replicax.backend import devices as _devices
from replicax.backend import placement as _placement
from replicax.core import nest as _nest
from replicax.tf import dtypes
from replicax.values.operators import plain as _plain

__all__ = [
    "add",
    "add_n",
    "cast",
    "concat",
    "constant",
    "convert_to_tensor",
    "device",
    "divide",
    "get_static_value",
    "identity",
    "matmul",
    "multiply",
    "ones",
    "ones_like",
    "range",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_sum",
    "reshape",
    "shape",
    "square",
    "stack",
    "subtract",
    "zeros",
    "zeros_like",
]

# -- making tensors ----------------------------------------------------------------------------


def constant(
    value: typing.Any, dtype: typing.Any = None, shape: typing.Any = None, name: str = "Const"
) -> jax.Array:
    """An array of `value`: a number, an array, or a nested list of them; always a copy.

    Args:
        value: What the array holds.
        dtype: Its dtype; float32 for Python floats and int32 for Python ints if None.
        shape: Its shape; a single element is repeated to fill it.
        name: Ignored.

    Returns:
        The array.

    Raises:
        TypeError: If `value` is of a kind that `dtype` cannot hold.
        ValueError: If `value` is too large for `dtype`, or for JAX without 64-bit types.

    Example:
        >>> constant(0, shape=(2, 2))
        Array([[0, 0],
               [0, 0]], dtype=int32)
    """
    array = convert_to_tensor(value, dtype)
    if array is value:
        array = jnp.copy(array)
    if shape is None:
        return array
    sizes = _sizes(shape)
    return jnp.full(sizes, array.reshape(())) if array.size == 1 else array.reshape(sizes)


def convert_to_tensor(
    value: typing.Any, dtype: typing.Any = None, name: str | None = None
) -> jax.Array:
    """`value` as an array; an array or the value of a variable comes back as it is.

    Args:
        value: A number, an array, a variable, or nested lists of them.
        dtype: Its dtype; float32 for Python floats and int32 for Python ints if None.
        name: Ignored.

    Returns:
        The array.

    Raises:
        TypeError: If `value` is of a kind that `dtype` cannot hold, or no number.
        ValueError: If `value` is too large for `dtype`, or for JAX without 64-bit types.

    Example:
        >>> convert_to_tensor([1, 2.5])
        Array([1. , 2.5], dtype=float32)
    """
    value = _nest.map_leaves(_plain, value)
    leaves = _nest.flatten(value)[0]
    if any(isinstance(leaf, jax.Array) for leaf in leaves):
        return _converted(jnp.asarray(value), dtype)
    array = np.asarray(value)
    if not _placement.is_array_like(array):
        raise TypeError(f"expected numbers, an array or nested lists of them; got {value!r}.")
    if dtype is None and _is_python(value):
        dtype = _documented_dtype(array)
    return jnp.array(_placement.narrowed(_fitted(array, dtype), "the value"))


def ones(
    shape: typing.Any, dtype: typing.Any = dtypes.float32, name: str | None = None
) -> jax.Array:
    """An array of ones.

    Args:
        shape: Its shape.
        dtype: Its dtype.
        name: Ignored.

    Returns:
        The array.

    Example:
        >>> import replicax.tf as tf
        >>> tf.ones((2,))
        Array([1., 1.], dtype=float32)
    """
    return jnp.ones(_sizes(shape), _canonical(dtype))


def zeros(
    shape: typing.Any, dtype: typing.Any = dtypes.float32, name: str | None = None
) -> jax.Array:
    """An array of zeros.

    Args:
        shape: Its shape.
        dtype: Its dtype.
        name: Ignored.

    Returns:
        The array.

    Example:
        >>> import replicax.tf as tf
        >>> tf.zeros((2,))
        Array([0., 0.], dtype=float32)
    """
    return jnp.zeros(_sizes(shape), _canonical(dtype))


def ones_like(input: typing.Any, dtype: typing.Any = None, name: str | None = None) -> jax.Array:
    """Ones, with the shape and (unless given) the dtype of `input`.

    Args:
        input: An array.
        dtype: Another dtype.
        name: Ignored.

    Returns:
        The array.

    Example:
        >>> import replicax.tf as tf
        >>> tf.ones_like([3, 4])
        Array([1, 1], dtype=int32)
    """
    tensor = convert_to_tensor(input)
    return ones(tensor.shape, tensor.dtype if dtype is None else dtype)


def zeros_like(input: typing.Any, dtype: typing.Any = None, name: str | None = None) -> jax.Array:
    """Zeros, with the shape and (unless given) the dtype of `input`.

    Args:
        input: An array.
        dtype: Another dtype.
        name: Ignored.

    Returns:
        The array.

    Example:
        >>> import replicax.tf as tf
        >>> tf.zeros_like([3, 4])
        Array([0, 0], dtype=int32)
    """
    tensor = convert_to_tensor(input)
    return zeros(tensor.shape, tensor.dtype if dtype is None else dtype)


def range(
    start: typing.Any,
    limit: typing.Any = None,
    delta: typing.Any = 1,
    dtype: typing.Any = None,
    name: str = "range",
) -> jax.Array:
    """The numbers from `start` (0 if it is the only argument) up to, not including, `limit`.

    Args:
        start: The first number; the limit, if it is the only argument.
        limit: Where to stop.
        delta: From one number to the next.
        dtype: Their dtype; that of the arguments if None.
        name: Ignored.

    Returns:
        The array.

    Example:
        >>> range(1, 6, 2)
        Array([1, 3, 5], dtype=int32)
    """
    start, limit = (0, start) if limit is None else (start, limit)
    if dtype is None:
        dtype = jnp.result_type(*map(convert_to_tensor, (start, limit, delta)))
    return jnp.arange(_plain(start), _plain(limit), _plain(delta), _canonical(dtype))


def device(device_name: typing.Any) -> contextlib.AbstractContextManager[typing.Any]:
    """A context in which arrays and ordinary variables are created on one device.

    It has no effect inside a compiled function, whose placement is the strategy's.

    Args:
        device_name: A name such as ``"CPU:0"``, one of ``extended.worker_devices``, a
            logical device, a JAX device, or None for JAX's default.

    Returns:
        A context manager.

    Example:
        >>> with device("CPU:1"):
        ...     x = constant(1.0)
        >>> x.devices()
        {CpuDevice(id=1)}
    """
    if device_name is None:
        return jax.default_device(None)
    return jax.default_device(_devices.resolve_device(device_name))


# -- changing tensors --------------------------------------------------------------------------


def identity(input: typing.Any, name: str | None = None) -> jax.Array:
    """A new array with the value of `input`.

    Args:
        input: An array.
        name: Ignored.

    Returns:
        The copy.

    Example:
        >>> import replicax.tf as tf
        >>> tf.identity([1, 2])
        Array([1, 2], dtype=int32)
    """
    return jnp.copy(convert_to_tensor(input))


def cast(x: typing.Any, dtype: typing.Any, name: str | None = None) -> jax.Array:
    """`x` converted to `dtype`, rounded where it must be.

    Args:
        x: An array.
        dtype: The dtype.
        name: Ignored.

    Returns:
        The array.

    Example:
        >>> cast([1.8, 2.2], dtypes.int32)
        Array([1, 2], dtype=int32)
    """
    return lax.convert_element_type(convert_to_tensor(x), _canonical(dtype))


def shape(
    input: typing.Any, out_type: typing.Any = dtypes.int32, name: str | None = None
) -> jax.Array:
    """The shape of `input`, as an array.

    Args:
        input: An array.
        out_type: The dtype of the result.
        name: Ignored.

    Returns:
        One size for each dim.

    Example:
        >>> import replicax.tf as tf
        >>> tf.shape([[1, 2, 3]])
        Array([1, 3], dtype=int32)
    """
    return constant(list(convert_to_tensor(input).shape), out_type)


def reshape(tensor: typing.Any, shape: typing.Any, name: str | None = None) -> jax.Array:
    """`tensor` with another shape; one size may be -1.

    Args:
        tensor: An array.
        shape: The new shape.
        name: Ignored.

    Returns:
        The array.

    Example:
        >>> import replicax.tf as tf
        >>> tf.reshape([1, 2, 3, 4], [2, -1])
        Array([[1, 2],
               [3, 4]], dtype=int32)
    """
    return convert_to_tensor(tensor).reshape(_sizes(shape))


def stack(values: typing.Any, axis: int = 0, name: str = "stack") -> jax.Array:
    """Arrays of one shape, along a new `axis`.

    Args:
        values: The arrays.
        axis: Where the new dim is.
        name: Ignored.

    Returns:
        The array.

    Example:
        >>> stack([[1, 2], [3, 4]], axis=1)
        Array([[1, 3],
               [2, 4]], dtype=int32)
    """
    return jnp.stack([convert_to_tensor(value) for value in values], axis)


def concat(values: typing.Any, axis: int, name: str = "concat") -> jax.Array:
    """Arrays, one after the other along `axis`.

    Args:
        values: The arrays; they may differ in the size along `axis`.
        axis: The dim.
        name: Ignored.

    Returns:
        The array.

    Example:
        >>> import replicax.tf as tf
        >>> tf.concat([[1], [2, 3]], axis=0)
        Array([1, 2, 3], dtype=int32)
    """
    return jnp.concatenate([convert_to_tensor(value) for value in values], axis)


def get_static_value(tensor: typing.Any, partial: bool = False) -> np.ndarray | None:
    """The value as a NumPy array, or None for one that exists only when a compiled step runs.

    Arrays of JAX have no ``numpy()``; this, or ``np.asarray(x)``, is what to write for it.

    Args:
        tensor: An array, a variable or a number.
        partial: Ignored.

    Returns:
        The host array, or None.

    Raises:
        TypeError: If `tensor` has a value for each replica.

    Example:
        >>> get_static_value(constant([1.0, 2.0]))
        array([1., 2.], dtype=float32)
    """
    array = convert_to_tensor(tensor)
    return None if isinstance(array, _Tracer) else np.asarray(array)


# -- arithmetic --------------------------------------------------------------------------------


def add(x: typing.Any, y: typing.Any, name: str | None = None) -> jax.Array:
    """The sum of `x` and `y`.

    Args:
        x: An array or a number.
        y: An array or a number.
        name: Ignored.

    Returns:
        The array.

    Example:
        >>> import replicax.tf as tf
        >>> tf.add(1, 2)
        Array(3, dtype=int32)
    """
    return jnp.add(*_operands(x, y))


def add_n(inputs: abc.Sequence[typing.Any], name: str | None = None) -> jax.Array:
    """The sum of arrays of one shape and dtype.

    Args:
        inputs: One array or more.
        name: Ignored.

    Returns:
        The array.

    Raises:
        ValueError: If there is none, or they differ in shape or dtype.

    Example:
        >>> add_n([[1, 2], [3, 4], [5, 6]])
        Array([ 9, 12], dtype=int32)
    """
    if not isinstance(inputs, abc.Sequence) or not inputs:
        raise ValueError(f"add_n needs a list of one array or more; got {inputs!r}.")
    tensors = [convert_to_tensor(each) for each in inputs]
    kinds = [f"{tensor.dtype}{list(tensor.shape)}" for tensor in tensors]
    if len(set(kinds)) > 1:
        raise ValueError(
            f"add_n needs arrays of one shape and dtype; got {', '.join(kinds)}. Write x + y to "
            "broadcast."
        )
    return functools.reduce(jnp.add, tensors)


def subtract(x: typing.Any, y: typing.Any, name: str | None = None) -> jax.Array:
    """`x` minus `y`.

    Args:
        x: An array or a number.
        y: An array or a number.
        name: Ignored.

    Returns:
        The array.

    Example:
        >>> import replicax.tf as tf
        >>> tf.subtract(3, 1)
        Array(2, dtype=int32)
    """
    return jnp.subtract(*_operands(x, y))


def multiply(x: typing.Any, y: typing.Any, name: str | None = None) -> jax.Array:
    """The product of `x` and `y`, element by element.

    Args:
        x: An array or a number.
        y: An array or a number.
        name: Ignored.

    Returns:
        The array.

    Example:
        >>> import replicax.tf as tf
        >>> tf.multiply([1, 2], 3)
        Array([3, 6], dtype=int32)
    """
    return jnp.multiply(*_operands(x, y))


def divide(x: typing.Any, y: typing.Any, name: str | None = None) -> jax.Array:
    """`x` divided by `y`; integers give a float.

    Args:
        x: An array or a number.
        y: An array or a number.
        name: Ignored.

    Returns:
        The array.

    Example:
        >>> import replicax.tf as tf
        >>> tf.divide(1, 2)
        Array(0.5, dtype=float32)
    """
    return jnp.divide(*_operands(x, y))


def square(x: typing.Any, name: str | None = None) -> jax.Array:
    """`x` times `x`.

    Args:
        x: An array or a number.
        name: Ignored.

    Returns:
        The array.

    Example:
        >>> import replicax.tf as tf
        >>> tf.square(3.0)
        Array(9., dtype=float32)
    """
    return jnp.square(convert_to_tensor(x))


def matmul(
    a: typing.Any,
    b: typing.Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    name: str | None = None,
) -> jax.Array:
    """The matrix product, with either side transposed first if asked.

    Args:
        a: A matrix, or a stack of matrices.
        b: Another.
        transpose_a: Whether to transpose `a` first.
        transpose_b: Whether to transpose `b` first.
        name: Ignored.

    Returns:
        The product.

    Example:
        >>> import replicax.tf as tf
        >>> tf.matmul([[1.0, 2.0]], [[3.0], [4.0]])
        Array([[11.]], dtype=float32)
    """
    a, b = _operands(a, b)
    return jnp.matmul(
        jnp.matrix_transpose(a) if transpose_a else a,
        jnp.matrix_transpose(b) if transpose_b else b,
    )


# -- reductions --------------------------------------------------------------------------------


def reduce_sum(
    input_tensor: typing.Any,
    axis: typing.Any = None,
    keepdims: bool = False,
    name: str | None = None,
) -> jax.Array:
    """The sum over `axis`, or of all elements, in the dtype of `input_tensor`.

    Args:
        input_tensor: An array.
        axis: The dim, or several; all if None.
        keepdims: Whether these dims stay, with size 1.
        name: Ignored.

    Returns:
        The sums.

    Example:
        >>> reduce_sum([[1.0, 2.0], [3.0, 4.0]], axis=0)
        Array([4., 6.], dtype=float32)
    """
    tensor = convert_to_tensor(input_tensor)
    is_bool = tensor.dtype == dtypes.bool
    return jnp.sum(tensor, _dims(axis), keepdims=keepdims, promote_integers=is_bool)


def reduce_mean(
    input_tensor: typing.Any,
    axis: typing.Any = None,
    keepdims: bool = False,
    name: str | None = None,
) -> jax.Array:
    """The mean over `axis`, or of all elements; integers give a float.

    Args:
        input_tensor: An array.
        axis: The dim, or several; all if None.
        keepdims: Whether these dims stay, with size 1.
        name: Ignored.

    Returns:
        The means.

    Example:
        >>> import replicax.tf as tf
        >>> tf.reduce_mean([1.0, 2.0])
        Array(1.5, dtype=float32)
    """
    return jnp.mean(convert_to_tensor(input_tensor), _dims(axis), keepdims=keepdims)


def reduce_max(
    input_tensor: typing.Any,
    axis: typing.Any = None,
    keepdims: bool = False,
    name: str | None = None,
) -> jax.Array:
    """The largest element over `axis`, or of all.

    Args:
        input_tensor: An array.
        axis: The dim, or several; all if None.
        keepdims: Whether these dims stay, with size 1.
        name: Ignored.

    Returns:
        The largest elements.

    Example:
        >>> import replicax.tf as tf
        >>> tf.reduce_max([[1, 5], [7, 2]], axis=0)
        Array([7, 5], dtype=int32)
    """
    return jnp.max(convert_to_tensor(input_tensor), _dims(axis), keepdims=keepdims)


def reduce_min(
    input_tensor: typing.Any,
    axis: typing.Any = None,
    keepdims: bool = False,
    name: str | None = None,
) -> jax.Array:
    """The smallest element over `axis`, or of all.

    Args:
        input_tensor: An array.
        axis: The dim, or several; all if None.
        keepdims: Whether these dims stay, with size 1.
        name: Ignored.

    Returns:
        The smallest elements.

    Example:
        >>> import replicax.tf as tf
        >>> tf.reduce_min([[1, 5], [7, 2]], axis=0)
        Array([1, 2], dtype=int32)
    """
    return jnp.min(convert_to_tensor(input_tensor), _dims(axis), keepdims=keepdims)


# -- conversions -------------------------------------------------------------------------------


def _canonical(dtype: typing.Any) -> np.dtype:
    """The dtype that JAX uses for `dtype` with its present settings."""
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def _sizes(shape: typing.Any) -> tuple[int, ...]:
    return tuple(int(size) for size in np.atleast_1d(_plain(shape)))


def _dims(axis: typing.Any) -> int | tuple[int, ...] | None:
    return tuple(axis) if isinstance(axis, abc.Sequence) else axis


def _operands(x: typing.Any, y: typing.Any) -> tuple[jax.Array, jax.Array]:
    """Both as arrays; Python numbers take the dtype of the array on the other side."""
    x, y = _plain(x), _plain(y)
    if isinstance(x, jax.Array) and _is_python(y):
        return _converted(x, None), convert_to_tensor(y, x.dtype)
    if isinstance(y, jax.Array) and _is_python(x):
        return convert_to_tensor(x, y.dtype), _converted(y, None)
    return convert_to_tensor(x), convert_to_tensor(y)


def _converted(array: jax.Array, dtype: typing.Any) -> jax.Array:
    """A JAX array as `dtype`, strongly typed."""
    target = array.dtype if dtype is None else _canonical(dtype)
    if jnp.promote_types(array.dtype, target) != target:
        raise TypeError(
            f"an array of dtype {array.dtype} is not made {target} without being asked to: write "
            "tf.cast(x, dtype)."
        )
    return lax.convert_element_type(array, target)


def _is_python(value: typing.Any) -> bool:
    """Whether `value` is a Python number, or nested lists of them, and so has no dtype yet."""
    numbers = (bool, int, float, complex)
    leaves = _nest.flatten(value)[0]
    return all(isinstance(leaf, numbers) and not isinstance(leaf, np.generic) for leaf in leaves)


def _documented_dtype(array: np.ndarray) -> np.dtype:
    """The dtype that Python numbers get; integers too large for int32 stay int64."""
    if array.dtype == dtypes.float64:
        return dtypes.float32
    info = np.iinfo(dtypes.int32)
    if array.dtype == dtypes.int64 and np.all((array >= info.min) & (array <= info.max)):
        return dtypes.int32
    return array.dtype


def _fitted(array: np.ndarray, dtype: typing.Any) -> np.ndarray:
    """A host array as `dtype`.

    Raises:
        TypeError: If the dtype is of a kind that cannot hold it: a float as an int.
        ValueError: If a value is out of range.
    """
    target = array.dtype if dtype is None else np.dtype(dtype)
    if target == array.dtype or array.size == 0:
        return array.astype(target, copy=False)
    if _kind(array.dtype) > _kind(target):
        raise TypeError(
            f"a value of dtype {array.dtype} is not made {target} without being asked to: write "
            f"tf.cast(x, dtype). The value is {array.tolist()!r}."
        )
    with np.errstate(over="ignore"):
        cast_array = array.astype(target)
    if _kind(target) == 1:
        fits = np.array_equal(cast_array, array)
    else:
        fits = np.array_equal(np.isfinite(cast_array), np.isfinite(array))
    if not fits:
        raise ValueError(f"the value {array.tolist()!r} does not fit {target}.")
    return cast_array


def _kind(dtype: typing.Any) -> int:
    kinds = (np.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return [jnp.issubdtype(dtype, kind) for kind in kinds].index(True)
