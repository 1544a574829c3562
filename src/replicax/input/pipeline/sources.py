"""Where elements come from: arrays in memory, a range, a generator of the user's."""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
from collections.abc import Callable, Generator, Iterable
from typing import Any

import jax
import numpy as np

from replicax.backend import host_memory
from replicax.core import nest
from replicax.core.errors import BatchError
from replicax.core.spec import TensorSpec
from replicax.input.pipeline import elements
from replicax.input.pipeline.stage import Rows, Stage
from replicax.input.pipeline.streams import stream
from replicax.input.source import UNKNOWN

MAX_COPIED_BYTES = 2**30
"""Of all arrays given to ``from_tensor_slices``; larger ones are read where they are."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Slices(Stage):
    """The rows of arrays in memory.

    Attributes:
        arrays: A nest of host arrays of one length.
        length: That length.
        is_fixed: Whether nobody else holds the arrays, so that they never change.
    """

    arrays: Any
    length: int
    is_fixed: bool = False

    @property
    def is_indexed(self) -> bool:
        """Any element is at hand."""
        return True

    @property
    def count(self) -> int:
        """As many as the arrays have rows."""
        return self.length

    @property
    def rows(self) -> Rows:
        return Rows(is_batch=False)

    def at(self, epoch: int, position: int) -> elements.Element:
        """A row of every array."""
        return jax.tree_util.tree_map(lambda x: x[position, ...], self.arrays)

    @property
    def is_gatherable(self) -> bool:
        """The arrays are at hand."""
        return True

    def gather(self, epochs: np.ndarray, positions: np.ndarray) -> elements.Element:
        return jax.tree_util.tree_map(lambda x: _rows(x, positions), self.arrays)

    def view(self, epoch: int, start: int, stop: int) -> elements.Element | None:
        """Parts of the arrays, if they never change."""
        if not self.is_fixed:
            return None
        if type(self.arrays) is np.ndarray:
            return self.arrays[start:stop]
        return jax.tree_util.tree_map(lambda x: x[start:stop], self.arrays)

    def find_spec(self) -> Any:
        return jax.tree_util.tree_map(lambda x: TensorSpec(x.shape[1:], x.dtype), self.arrays)

    def find_example(self) -> elements.Element:
        if not self.length:
            return elements.blank(self.spec)
        return jax.tree_util.tree_map(lambda x: x[0, ...], self.arrays)


def _rows(array: np.ndarray, positions: np.ndarray) -> np.ndarray:
    # `take` would first make an array like this of any other, as a whole.
    is_plain = array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative
    if array.dtype.hasobject or not is_plain or not len(positions):
        return array[positions]
    rows = host_memory.aligned((len(positions), *array.shape[1:]), array.dtype)
    # The places exist; with mode="raise" NumPy would copy everything once more.
    return np.take(array, positions, axis=0, out=rows, mode="clip")


def slices_of(tensors: Any) -> Slices:
    """The stage of ``from_tensor_slices``.

    Raises:
        BatchError: If there is no array, or a scalar, or the lengths differ.
    """
    arrays = elements.read_only(elements.as_element(tensors, what="tensors"))
    pairs = nest.leaves_with_path(arrays)
    if not pairs:
        raise BatchError(
            f"from_tensor_slices got {tensors!r}, which has no arrays in it; expected an array or "
            "a nest (tuples, dicts) of arrays."
        )
    for path, leaf in pairs:
        if np.ndim(leaf) == 0:
            raise BatchError(
                f"from_tensor_slices cuts arrays along dim 0, but {path or 'what it got'} is the "
                f"scalar {leaf!r}. Use Dataset.from_tensors for one element, or give it a dim 0."
            )
    sizes = {len(leaf) for _, leaf in pairs}
    if len(sizes) > 1:
        listing = ", ".join(f"{path}: {len(leaf)}" for path, leaf in pairs)
        raise BatchError(f"from_tensor_slices needs arrays of one length in dim 0; got {listing}.")
    leaves = [leaf for _, leaf in pairs]
    if sum(leaf.nbytes for leaf in leaves) > MAX_COPIED_BYTES or any(map(_is_mapped, leaves)):
        return Slices(arrays=arrays, length=sizes.pop())
    copied = elements.read_only(jax.tree_util.tree_map(_copied, arrays))
    return Slices(arrays=copied, length=sizes.pop(), is_fixed=True)


def _is_mapped(array: np.ndarray) -> bool:
    """Whether an array is a file, which is read row by row."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            return True
        base = base.base
    return isinstance(base, mmap.mmap)


def _copied(array: np.ndarray) -> np.ndarray:
    if array.dtype.hasobject:
        return array.copy()
    copied = host_memory.aligned(array.shape, array.dtype)
    np.copyto(copied, array)
    return copied


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Single(Stage):
    """One element.

    Attributes:
        element: The element.
    """

    element: elements.Element

    @property
    def is_indexed(self) -> bool:
        """Any element is at hand."""
        return True

    @property
    def count(self) -> int:
        return 1

    @property
    def rows(self) -> Rows:
        """Whether it is a batch, only the user knows."""
        return Rows(is_batch=None, is_uniform=True)

    def at(self, epoch: int, position: int) -> elements.Element:
        return self.element

    def find_spec(self) -> Any:
        return elements.spec_of(self.element)

    def find_example(self) -> elements.Element:
        return self.element


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Numbers(Stage):
    """A range of whole numbers.

    Attributes:
        values: The range.
        dtype: What the numbers are given as.
    """

    values: range
    dtype: np.dtype

    @property
    def is_indexed(self) -> bool:
        """Any element is at hand."""
        return True

    @property
    def count(self) -> int:
        """The length of the range."""
        return len(self.values)

    @property
    def rows(self) -> Rows:
        return Rows(is_batch=False)

    def at(self, epoch: int, position: int) -> elements.Element:
        return self.dtype.type(self.values[position])

    @property
    def is_gatherable(self) -> bool:
        """A number is computed from its place."""
        return True

    def gather(self, epochs: np.ndarray, positions: np.ndarray) -> elements.Element:
        """The numbers at these places."""
        return (self.values.start + positions * self.values.step).astype(self.dtype)

    def find_spec(self) -> Any:
        return TensorSpec((), self.dtype)

    def find_example(self) -> elements.Element:
        return self.dtype.type(self.values.start)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Generated(Stage):
    """What a generator function of the user's yields.

    Attributes:
        generator: Called once for every pass.
        args: What it is called with.
        signature: The declared shapes and dtypes, None if the first element tells them.
    """

    generator: Callable[..., Iterable[Any]]
    args: tuple[Any, ...]
    signature: Any

    @property
    def is_indexed(self) -> bool:
        """Elements come one after another."""
        return False

    @property
    def count(self) -> int:
        return UNKNOWN

    @property
    def rows(self) -> Rows:
        return Rows(is_batch=None, is_uniform=self.signature is not None)

    def stream(self, epoch: int) -> Any:
        """Calls the function when the pass begins."""
        return stream(self._read)

    def _read(self) -> Generator[elements.Element]:
        produced = iter(self.generator(*self.args))
        try:
            for value in produced:
                yield self._converted(value)
        finally:
            close = getattr(produced, "close", None)
            if close is not None:
                close()

    def _converted(self, value: Any) -> elements.Element:
        if self.signature is None:
            value = tuple(value) if isinstance(value, list) else value
            element = elements.as_element(value, what="what the generator yielded")
        else:
            element = _declared(value, self.signature, what="what the generator yielded")
        if element is None:
            raise BatchError("the generator yielded None; expected a nest of arrays.")
        return element

    def find_spec(self) -> Any:
        """As declared, else known from one element."""
        return self.signature if self.signature is not None else elements.spec_of(self.example)

    def find_example(self) -> elements.Element:
        """The first element of a pass of its own.

        Raises:
            BatchError: If it yields nothing and nothing was declared.
        """
        with contextlib.closing(self._read()) as produced:
            for element in produced:
                return element
        if self.signature is None:
            raise BatchError(
                "the generator yielded nothing, so the shapes and dtypes of its elements are not "
                "known. Declare them: from_generator(..., output_signature=TensorSpec(...))."
            )
        return elements.blank(self.signature)


def _declared(value: Any, signature: Any, *, what: str) -> elements.Element:
    """`value` as the signature declares it."""
    if isinstance(signature, TensorSpec):
        return _declared_array(value, signature, what)
    if isinstance(signature, dict):
        if not isinstance(value, dict) or set(value) != set(signature):
            raise _other_structure(value, signature, what)
        return {k: _declared(value[k], s, what=f"{what}[{k!r}]") for k, s in signature.items()}
    if not isinstance(value, (tuple, list)) or len(value) != len(signature):
        raise _other_structure(value, signature, what)
    items = [
        _declared(v, s, what=f"{what}[{i}]")
        for i, (v, s) in enumerate(zip(value, signature, strict=True))
    ]
    return type(signature)(*items) if hasattr(signature, "_fields") else tuple(items)


def _declared_array(value: Any, spec: TensorSpec, what: str) -> Any:
    array = elements.as_array(value, what=what)
    if spec.dtype.kind in "OUS":
        spec = TensorSpec(spec.shape, object)
    if (array.dtype == object) != (spec.dtype == object):
        raise BatchError(
            f"{what} has dtype {array.dtype}, but {spec.dtype} was declared. Yield what was "
            "declared, or declare what is yielded."
        )
    array = array.astype(spec.dtype, copy=False)
    if not spec.is_compatible_with(np.shape(array), array.dtype):
        raise BatchError(
            f"{what} has the shape {np.shape(array)}, but {spec.shape} was declared. Yield that "
            "shape, or declare None for every dim whose size varies."
        )
    return array


def _other_structure(value: Any, signature: Any, what: str) -> BatchError:
    return BatchError(
        f"{what} is {value!r}, which does not have the declared structure {signature!r}."
    )
