"""Checks what is assigned to a variable and converts it to the variable's type."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from replicax.backend import placement
from replicax.core.errors import DistributedValueError, VariableError
from replicax.values.distributed import PerReplica
from replicax.values.operators import plain


def converted(value: Any, storage: Any, what: str) -> Any:
    """`value` with the dtype of the variable and without a gradient.

    Args:
        value: What the user passed.
        storage: The storage of the variable.
        what: The call, for errors.

    Raises:
        VariableError: If the shape differs, or the dtype cannot hold the value.
        DistributedValueError: If a per-replica value was passed where one is needed.
    """
    value = plain(value)
    name = storage.name
    if isinstance(value, PerReplica):
        raise DistributedValueError(
            f"{what} of variable {name!r} got a PerReplica value in cross-replica context. Combine "
            "the replicas first with strategy.reduce or extended.reduce_to."
        )
    if isinstance(value, (list, tuple)) and any(
        isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value)
    ):
        value = jnp.asarray(value)
    if hasattr(value, "__jax_array__") and not placement.is_array_like(value):
        value = jnp.asarray(value)  # a size that is a symbol while a program is exported
    if not isinstance(value, jax.Array):
        value = _host_array(value, storage, what)
    if tuple(value.shape) != storage.shape:
        raise VariableError(
            f"{what} got shape {tuple(value.shape)}, but variable {name!r} has shape "
            f"{storage.shape}. Pass a value of that shape."
        )
    check_dtype(value.dtype, storage, what)
    if isinstance(value, jax.Array) and not jnp.issubdtype(value.dtype, jax.dtypes.extended):
        value = lax.stop_gradient(value)
        return lax.convert_element_type(value, storage.dtype)  # also makes a weak type strong
    return value


def _host_array(value: Any, storage: Any, what: str) -> np.ndarray:
    if isinstance(value, (bool, int, float, complex)):
        if not _number_fits(value, storage.dtype):
            raise VariableError(
                f"{what} got {value!r}, which variable {storage.name!r} of dtype {storage.dtype} "
                "cannot hold exactly. Convert the value, or create the variable with another dtype."
            )
        return np.asarray(value, storage.dtype)
    try:
        array = placement.narrowed(value, f"the value passed to {what} of {storage.name!r}")
    except (TypeError, ValueError) as error:
        raise VariableError(
            f"{what} of variable {storage.name!r} got {value!r}, which is no array: {error}"
        ) from error
    if not placement.is_array_like(array):
        raise VariableError(
            f"{what} of variable {storage.name!r} got {value!r}, which is no array or number of "
            f"dtype {storage.dtype}."
        )
    if isinstance(value, (list, tuple)) and array.dtype.kind in "biuf":
        check_dtype(np.result_type(array.dtype), storage, what)
        return array.astype(storage.dtype)
    if isinstance(array, np.ndarray):
        check_dtype(array.dtype, storage, what)
        return array.astype(storage.dtype)
    return array


def _number_fits(value: Any, dtype: Any) -> bool:
    if isinstance(value, bool):
        return True
    if isinstance(value, int):
        if jnp.issubdtype(dtype, jnp.integer):
            info = jnp.iinfo(dtype)
            return int(info.min) <= value <= int(info.max)
        return jnp.issubdtype(dtype, jnp.inexact)
    if isinstance(value, float):
        return jnp.issubdtype(dtype, jnp.inexact)
    return jnp.issubdtype(dtype, jnp.complexfloating)


def check_dtype(dtype: Any, storage: Any, what: str) -> None:
    """Raises if values of `dtype` cannot become the variable's without loss of kind or width.

    Raises:
        VariableError: If they cannot.
    """
    if dtype == storage.dtype:
        return
    extended = jax.dtypes.extended
    fits = not jnp.issubdtype(dtype, extended) and not jnp.issubdtype(storage.dtype, extended)
    if not fits or jnp.promote_types(dtype, storage.dtype) != storage.dtype:
        raise VariableError(
            f"{what} got dtype {dtype}, which variable {storage.name!r} of dtype {storage.dtype} "
            "cannot hold without loss. Convert the value with .astype, or create the variable "
            "with another dtype."
        )
