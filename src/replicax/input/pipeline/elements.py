"""The elements of a dataset: nests of host arrays.

Tuples, named tuples and dicts are structure; lists are arrays, as ``tf.data`` has it.
Between the steps of a pipeline a string is an array of objects, bytes without any loss,
so that Grain stacks strings as it stacks numbers. What a user's function or loop is
given for a single string is plain ``bytes``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from replicax.core import nest
from replicax.core.errors import BatchError
from replicax.core.spec import TensorSpec

Element = Any
"""A nest of host arrays."""

_PYTHON_NUMBERS = (bool, int, float, complex)


def as_element(value: Any, *, what: str) -> Element:
    """`value` with every leaf as a host array.

    Python ints become int64, Python floats float32, strings bytes; arrays keep their dtype.

    Args:
        value: A nest of arrays, numbers, strings and lists of them.
        what: What it is, for messages.

    Raises:
        BatchError: If a leaf is ragged, or no array at all.

    Example:
        >>> as_element((1, {"b": [2.0, 3.0]}), what="the element")
        (array(1), {'b': array([2., 3.], dtype=float32)})
    """
    if value is None:
        return None
    if isinstance(value, tuple):
        items = [as_element(item, what=f"{what}[{i}]") for i, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        items = {key: as_element(item, what=f"{what}[{key!r}]") for key, item in value.items()}
        return items if type(value) is dict else type(value)(items)
    return as_array(value, what=what)


def as_array(value: Any, *, what: str) -> Any:
    """One leaf as a host array; a NumPy scalar stays one."""
    if isinstance(value, np.generic):
        array = value
    elif isinstance(value, np.ndarray):
        array = np.asarray(value)  # a file mapped into memory is still read row by row
    elif isinstance(value, (str, bytes)):
        return _boxed(value)
    elif isinstance(value, (list, range)):
        array = _of_list(list(value), what)
    elif isinstance(value, _PYTHON_NUMBERS):
        array = np.asarray(value)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
    else:
        try:
            array = np.asarray(value)
        except (TypeError, ValueError) as error:
            raise _no_array(value, what) from error
    if array.dtype.kind in "OUS":
        return _of_strings(np.asarray(array), value, what)
    return array


def _of_list(value: list[Any], what: str) -> np.ndarray:
    first: Any = value
    while isinstance(first, list) and first:
        first = first[0]
    if isinstance(first, list):  # nothing in it
        return np.asarray(value, np.float32)
    try:
        if isinstance(first, (str, bytes)):  # as objects, because NumPy's own lose trailing NULs
            array = np.asarray(value, object)
        elif type(first) in _PYTHON_NUMBERS:
            array = np.asarray(value)
        else:
            array = np.asarray(jax.tree_util.tree_map(np.asarray, value))
    except (TypeError, ValueError) as error:
        raise BatchError(
            f"{what} is a list that is no array ({error}). A list becomes one array, so its items "
            "must have one shape; write a tuple or a dict for a structure of several arrays."
        ) from error
    if type(first) in _PYTHON_NUMBERS and array.dtype == np.float64:
        return array.astype(np.float32)
    return array


def _of_strings(array: np.ndarray, value: Any, what: str) -> np.ndarray:
    strings = np.empty(array.shape, object)
    for index in np.ndindex(array.shape):
        item = array[index]
        if not isinstance(item, (str, bytes)):
            raise _no_array(value, what)
        strings[index] = _as_bytes(item)
    return strings


def _boxed(value: str | bytes) -> np.ndarray:
    box = np.empty((), object)
    box[()] = _as_bytes(value)
    return box


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _no_array(value: Any, what: str) -> BatchError:
    return BatchError(
        f"{what} is {type(value).__name__} {value!r}, which is no array of numbers or strings. "
        "Elements are nests (tuples, dicts) of arrays; pad ragged ones to one shape, and make "
        "sparse ones dense."
    )


def read_only(element: Element) -> Element:
    """The same arrays, refusing writes: they are handed out more than once."""
    return jax.tree_util.tree_map(_frozen, element)


def _frozen(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray):
        return leaf
    view = leaf.view()
    view.flags.writeable = False
    return view


def outward(element: Element) -> Element:
    """What the user sees: a single string is bytes."""
    if isinstance(element, np.ndarray):
        return _unboxed(element)
    if isinstance(element, np.generic):
        return element
    return jax.tree_util.tree_map(_unboxed, element)


def _unboxed(leaf: Any) -> Any:
    return leaf[()] if isinstance(leaf, np.ndarray) and leaf.ndim == 0 else leaf


def call(fn: Callable[..., Any], element: Element) -> Any:
    """Calls a user's function with an element; the parts of a plain tuple are its arguments."""
    shown = outward(element)
    return fn(*shown) if type(shown) is tuple else fn(shown)


def spec_of(element: Element) -> Any:
    """The shapes and dtypes of an element."""
    return jax.tree_util.tree_map(lambda x: TensorSpec(np.shape(x), x.dtype), element)


def map_spec(fn: Callable[..., Any], *specs: Any) -> Any:
    """Applies `fn` to the `TensorSpec` leaves of nests of one structure."""
    return jax.tree_util.tree_map(fn, *specs, is_leaf=lambda x: isinstance(x, TensorSpec))


def spec_leaves(spec: Any) -> list[TensorSpec]:
    """The `TensorSpec` leaves of a nest."""
    return jax.tree_util.tree_leaves(spec, is_leaf=lambda x: isinstance(x, TensorSpec))


def structure_of(spec: Any) -> Any:
    """How the `TensorSpec` leaves of a nest are put together."""
    return jax.tree_util.tree_structure(spec, is_leaf=lambda x: isinstance(x, TensorSpec))


def blank(spec: Any) -> Element:
    """An element of zeros, one wherever a dim may have any size."""

    def zeros(leaf: TensorSpec) -> np.ndarray:
        shape = tuple(1 if size is None else size for size in leaf.shape or ())
        return np.full(shape, b"", object) if leaf.dtype == object else np.zeros(shape, leaf.dtype)

    return map_spec(zeros, spec)


def difference(examples: Sequence[Element]) -> str:
    """Why examples cannot be stacked: the leaves that differ in shape, with all their shapes."""
    shapes: dict[str, dict[tuple[int, ...], None]] = {}
    for example in examples:
        for path, leaf in nest.leaves_with_path(example):
            shapes.setdefault(path, {})[np.shape(leaf)] = None
    ragged = [
        f"leaf {path or '(the example itself)'} has the shapes {', '.join(map(str, found))}"
        for path, found in shapes.items()
        if len(found) > 1
    ]
    return "; ".join(ragged) if ragged else "they differ in structure"


def rows_of(batch: Element, *, what: str) -> list[Element]:
    """The examples of a batch.

    Raises:
        BatchError: If a leaf is a scalar, or leaves differ in their number of rows.
    """
    leaves, structure = jax.tree_util.tree_flatten(batch)
    sizes = {np.shape(leaf)[:1] for leaf in leaves}
    if len(sizes) != 1 or () in sizes:
        listing = ", ".join(
            f"{path or 'the element'}: {np.shape(leaf)}"
            for path, leaf in nest.leaves_with_path(batch)
        )
        raise BatchError(
            f"{what} needs elements whose leaves have one dim 0; got the shapes {listing}."
        )
    (size,) = sizes.pop()
    return [
        jax.tree_util.tree_unflatten(structure, [x[i, ...] for x in leaves]) for i in range(size)
    ]
