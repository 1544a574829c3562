"""Batches: stacked by Grain, padded, and taken apart again."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from replicax.core.errors import BatchError
from replicax.core.spec import TensorSpec
from replicax.input.pipeline import elements
from replicax.input.pipeline.stage import OneInput, Rows, as_stream, scaled
from replicax.input.pipeline.streams import flattened, stream
from replicax.input.source import INFINITE, UNKNOWN, BatchPart, PartOf


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Batch(OneInput):
    """Consecutive elements stacked along a new dim 0.

    Attributes:
        batch_size: How many elements a full batch has.
        drop_remainder: Whether a last batch that is not full is left out.
    """

    batch_size: int
    drop_remainder: bool = False

    def at(self, epoch: int, position: int) -> elements.Element:
        """Takes it out of arrays, or stacks single elements."""
        return self._part_at(epoch, position, slice).batch

    def stream(self, epoch: int) -> Any:
        """Stacks them as they are read."""
        return as_stream(self.input, epoch).batch(
            self.batch_size, drop_remainder=self.drop_remainder, batch_fn=self._combined
        )

    def _combined(self, values: Sequence[elements.Element]) -> elements.Element:
        return stacked(values)

    @property
    def is_divisible(self) -> bool:
        """Examples are stacked one by one."""
        return self.is_indexed

    @property
    def is_gathered(self) -> bool:
        """Whether batches are taken out of arrays without looking at single elements."""
        return self.is_indexed and self.input.is_gatherable

    def part_at(self, epoch: int, position: int, part_of: PartOf) -> BatchPart:
        """Some examples of one batch."""
        return self._part_at(epoch, position, part_of, may_share=True)

    def _part_at(
        self, epoch: int, position: int, part_of: PartOf, *, may_share: bool = False
    ) -> BatchPart:
        first, count = position * self.batch_size, self._input_count
        size = self.batch_size if count == INFINITE else min(self.batch_size, count - first)
        start, stop, _ = part_of(size).indices(size)
        if self._is_gathered:
            return BatchPart(self._rows(epoch, first + start, first + stop, may_share), size)
        if start < stop:
            values = [self.input.at(epoch, first + place) for place in range(start, stop)]
            return BatchPart(self._combined(values), size)
        return BatchPart(self._no_rows, size)

    def _rows(self, epoch: int, start: int, stop: int, may_share: bool) -> elements.Element:
        view = self.input.view(epoch, start, stop) if may_share and start < stop else None
        if view is not None:
            return view
        positions = np.arange(start, stop)
        epochs = np.full(len(positions), epoch % 2**64, np.uint64).view(np.int64)
        return self.input.gather(epochs, positions)

    @functools.cached_property
    def _is_gathered(self) -> bool:
        return self.is_gathered

    @functools.cached_property
    def _no_rows(self) -> elements.Element:
        return jax.tree_util.tree_map(lambda x: x[:0], self._combined([self.input.example]))

    @functools.cached_property
    def _input_count(self) -> int:
        return self.input.count

    @property
    def count(self) -> int:
        """How many batches there are."""
        spare = 0 if self.drop_remainder else self.batch_size - 1
        return scaled(self.input.count, lambda count: (count + spare) // self.batch_size)

    @property
    def makes_buffers(self) -> bool:
        return True

    @property
    def rows(self) -> Rows:
        """Batches, uniform if the elements are known to fill them."""
        count = self.input.count
        fills = count == INFINITE or (count != UNKNOWN and count % self.batch_size == 0)
        return Rows(is_batch=True, size=self.batch_size, is_uniform=self.drop_remainder or fills)

    def find_spec(self) -> Any:
        """The input's with another dim, of any size if the last batch may be smaller."""
        size = self.batch_size if self.drop_remainder else None
        return elements.map_spec(
            lambda s: TensorSpec(None if s.shape is None else (size, *s.shape), s.dtype),
            self.input.spec,
        )

    def find_example(self) -> elements.Element:
        """A batch of one element over and over."""
        return stacked([self.input.example] * self._example_size)

    @property
    def _example_size(self) -> int:
        count = self.input.count
        is_short = not self.drop_remainder and 0 < count < self.batch_size
        return count if is_short else self.batch_size


def stacked(values: Sequence[elements.Element]) -> elements.Element:
    """One batch, in buffers of its own.

    Raises:
        BatchError: If the elements differ in shape or structure.
    """
    try:
        return jax.tree_util.tree_map(lambda *leaves: np.stack(leaves), *values)
    except ValueError as error:
        raise BatchError(
            f"the elements of one batch cannot be stacked: {elements.difference(values)}. Use "
            "padded_batch for elements of several shapes, or map them to one shape and structure."
        ) from error


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PaddedBatch(Batch):
    """Batches of elements of several shapes, filled up to one shape.

    Attributes:
        padded_shapes: The shapes to fill up to, a nest like the elements; None, also for a
            dim, fills up to the largest of the batch.
        padding_values: What is filled in, a nest like the elements or one value for all;
            None fills in zeros and empty strings.
    """

    padded_shapes: Any = None
    padding_values: Any = None

    @property
    def is_divisible(self) -> bool:
        """A part is filled up to the largest of the whole batch."""
        return False

    @property
    def is_gathered(self) -> bool:
        return False

    def _combined(self, values: Sequence[elements.Element]) -> elements.Element:
        flat = [jax.tree_util.tree_flatten(value) for value in values]
        structure = flat[0][1]
        if any(other != structure for _, other in flat):
            raise BatchError("the elements given to padded_batch differ in structure.")
        columns = list(zip(*(leaves for leaves, _ in flat), strict=True))
        shapes = self._shapes(len(columns))
        padding = self._padding(len(columns))
        batch = [_filled_up(*args) for args in zip(columns, shapes, padding, strict=True)]
        return jax.tree_util.tree_unflatten(structure, batch)

    def _shapes(self, num_leaves: int) -> list[Any]:
        if self.padded_shapes is None:
            return [None] * num_leaves
        shapes = jax.tree_util.tree_leaves(self.padded_shapes, is_leaf=_is_shape)
        return _one_per_leaf(shapes, num_leaves, "padded_shapes")

    def _padding(self, num_leaves: int) -> list[Any]:
        values = jax.tree_util.tree_leaves(self.padding_values, is_leaf=lambda x: x is None)
        values = values * num_leaves if len(values) == 1 else values
        return _one_per_leaf(values, num_leaves, "padding_values")

    def find_spec(self) -> Any:
        """As declared; a dim that is filled up to the largest has any size."""
        size = self.batch_size if self.drop_remainder else None
        leaves = elements.spec_leaves(self.input.spec)
        specs = iter(
            [
                TensorSpec((size, *_padded_dims(leaf, shape)), leaf.dtype)
                for leaf, shape in zip(leaves, self._shapes(len(leaves)), strict=True)
            ]
        )
        return elements.map_spec(lambda _: next(specs), self.input.spec)

    def find_example(self) -> elements.Element:
        """A batch of one element over and over."""
        return self._combined([self.input.example] * self._example_size)


def _is_shape(node: Any) -> bool:
    if node is None or isinstance(node, list):
        return True
    return isinstance(node, tuple) and all(isinstance(d, int | None) for d in node)


def _one_per_leaf(values: list[Any], num_leaves: int, argument: str) -> list[Any]:
    if len(values) != num_leaves:
        raise BatchError(
            f"{argument} has {len(values)} entries for elements with {num_leaves} leaves; give it "
            "the structure of the elements."
        )
    return values


def _padded_dims(leaf: TensorSpec, shape: Any) -> tuple[int | None, ...]:
    if shape is None:
        return (None,) * len(leaf.shape or ())
    return tuple(None if d in (None, -1) else int(d) for d in shape)


def _filled_up(leaves: Sequence[Any], shape: Any, padding: Any) -> np.ndarray:
    sizes = [np.shape(leaf) for leaf in leaves]
    if len({len(size) for size in sizes}) > 1:
        raise BatchError(f"padded_batch needs elements of one rank; got the shapes {sizes}.")
    largest = tuple(max(dims) for dims in zip(*sizes, strict=True))
    target = largest
    if shape is not None:
        if len(shape) != len(largest):
            raise BatchError(
                f"padded_batch got the padded shape {tuple(shape)} for elements of shape "
                f"{sizes[0]}; give it one entry for every dim."
            )
        target = tuple(
            size if d in (None, -1) else int(d) for d, size in zip(shape, largest, strict=True)
        )
    if any(size > wanted for size, wanted in zip(largest, target, strict=True)):
        raise BatchError(
            f"padded_batch cannot fill up an element of shape {largest} to {target}: it is larger "
            "already. Use None for a dim to take the largest of the batch."
        )
    dtype = leaves[0].dtype
    batch = np.full((len(leaves), *target), _padding_value(padding, dtype), dtype)
    for row, leaf in zip(batch, leaves, strict=True) if target else ():
        row[tuple(slice(0, size) for size in np.shape(leaf))] = leaf
    return batch if target else np.stack(leaves)


def _padding_value(padding: Any, dtype: np.dtype) -> Any:
    if padding is None:
        return b"" if dtype.kind == "O" else np.zeros((), dtype)
    value = elements.as_array(padding, what="padding_values")
    if not np.can_cast(value.dtype, dtype, "same_kind"):
        raise BatchError(
            f"padding_values has {padding!r} for elements of dtype {dtype}; give it a value of "
            "that type."
        )
    return value[()] if isinstance(value, np.ndarray) else value


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Unbatch(OneInput):
    """The rows of every element."""

    @property
    def is_indexed(self) -> bool:
        """Elements come one after another."""
        return False

    def stream(self, epoch: int) -> Any:
        """Takes elements apart as they are read."""
        rows_of = functools.partial(elements.rows_of, what="unbatch")

        def start() -> Iterator[elements.Element]:
            return flattened(as_stream(self.input, epoch), rows_of)

        return stream(start)

    @property
    def count(self) -> int:
        """Known if every element is known to have the same number of rows."""
        rows = self.input.rows
        if self.input.count in (INFINITE, 0):
            return self.input.count
        if rows.size is None or not rows.is_uniform or self.input.count == UNKNOWN:
            return UNKNOWN
        return self.input.count * rows.size

    @property
    def makes_buffers(self) -> bool:
        """Rows of one element share its buffers."""
        return False

    @property
    def rows(self) -> Rows:
        """Single examples, unless the rows have rows."""
        return Rows(is_batch=False if self.input.rows.is_batch else None)

    def find_spec(self) -> Any:
        """The input's without dim 0."""

        def row_of(spec: TensorSpec) -> TensorSpec:
            if spec.shape == ():
                raise BatchError("unbatch needs elements with a dim 0; these are scalars.")
            return TensorSpec(None if spec.shape is None else spec.shape[1:], spec.dtype)

        return elements.map_spec(row_of, self.input.spec)

    def find_example(self) -> elements.Element:
        rows = elements.rows_of(self.input.example, what="unbatch")
        return rows[0] if rows else elements.blank(self.spec)
