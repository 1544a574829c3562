"""Pictures of where the pieces of a value live: which device holds which part of it."""

from __future__ import annotations

import dataclasses
import html
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from replicax.backend import devices
from replicax.core.extras import require_extra
from replicax.values.distributed import Mirrored, PerReplica
from replicax.variables.sharded import ShardedVariable
from replicax.variables.variable import Variable

__all__ = ["Drawing", "visualize_value"]

_WIDTH, _HEIGHT, _TITLE = 480, 240, 24
_COLOURS = ("#8ecae6", "#ffb703", "#a7c957", "#f4978e", "#cdb4db", "#90dbf4", "#fcbf49", "#b5c99a")

Bounds = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A part of a value, and who has it.

    Attributes:
        bounds: Start and stop along each dim.
        holders: The names of the devices that hold it.
    """

    bounds: Bounds
    holders: tuple[str, ...]

    def __str__(self) -> str:
        index = ", ".join(f"{start}:{stop}" for start, stop in self.bounds)
        return f"[{index}] on {', '.join(self.holders)}"


class Drawing:
    """Where the pieces of a value live; printed as text, shown as SVG by notebooks.

    Attributes:
        title: What is drawn.
        shape: The shape of the value; of a per-replica one, of all components together.
        blocks: Its parts.
    """

    def __init__(self, title: str, shape: tuple[int, ...], blocks: Sequence[Block]) -> None:
        self.title = title
        self.shape = shape
        self.blocks = tuple(blocks)

    def __repr__(self) -> str:
        return "\n".join([self.title, *(f"  {block}" for block in self.blocks)])

    def svg(self) -> str:
        """The picture: the last two dims, each block as a rectangle with its devices."""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT + _TITLE}" '
            'font-family="sans-serif" font-size="12">',
            f'<text x="4" y="16">{html.escape(self.title)}</text>',
        ]
        for number, (block, (x, y, width, height)) in enumerate(self._rectangles()):
            colour = _COLOURS[number % len(_COLOURS)]
            text = html.escape(", ".join(block.holders))
            x, y, width, height = x * _WIDTH, y * _HEIGHT + _TITLE, width * _WIDTH, height * _HEIGHT
            parts.append(
                f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
                f'fill="{colour}" stroke="white"><title>{html.escape(str(block))}</title></rect>'
                f'<text x="{x + width / 2:g}" y="{y + height / 2:g}" '
                f'text-anchor="middle">{text}</text>'
            )
        return "".join([*parts, "</svg>"])

    _repr_svg_ = svg

    def _rectangles(self) -> list[tuple[Block, tuple[float, float, float, float]]]:
        """Each block with x, y, width and height as parts of the whole.

        Of more than two dims the others are drawn one below the other.
        """
        found = []
        for block in self.blocks:
            bounds = [(0, 1)] * (2 - len(block.bounds)) + list(block.bounds)
            shape = [1] * (2 - len(self.shape)) + list(self.shape)
            top, whole = 0, 1
            for (start, _), size in zip(bounds[:-2], shape[:-2], strict=True):
                top, whole = top * size + start, whole * size
            span = int(np.prod([stop - start for start, stop in bounds[:-2]], dtype=int))
            (y0, y1), (x0, x1) = bounds[-2:]
            rows, columns = max(shape[-2], 1), max(shape[-1], 1)
            y = (top + y0 / rows) / whole
            height = span * (y1 - y0) / rows / whole
            found.append((block, (x0 / columns, y, (x1 - x0) / columns, height)))
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture, as SVG or PNG by the ending of `path`.

        Args:
            path: The file.

        Raises:
            ValueError: If it has another ending.
            ImportError: For PNG, if matplotlib is not installed.
        """
        path = pathlib.Path(path)
        if path.suffix == ".svg":
            path.write_text(self.svg(), encoding="utf-8")
        elif path.suffix == ".png":
            self._save_png(path)
        else:
            raise ValueError(f"path is {str(path)!r}; expected one that ends with .svg or .png.")

    def _save_png(self, path: pathlib.Path) -> None:
        require_extra("matplotlib", user="Drawing.save of a PNG", extra="demo")
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle

        figure = Figure(figsize=(_WIDTH / 80, (_HEIGHT + _TITLE) / 80))
        FigureCanvasAgg(figure)
        axes = figure.add_subplot(title=self.title)
        axes.set_axis_off()
        axes.invert_yaxis()
        for number, (block, (x, y, width, height)) in enumerate(self._rectangles()):
            colour = _COLOURS[number % len(_COLOURS)]
            axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor="white"))
            axes.text(
                x + width / 2, y + height / 2, ", ".join(block.holders), ha="center", va="center"
            )
        axes.set_xlim(0, 1)
        axes.set_ylim(1, 0)
        figure.savefig(path, dpi=160)


def visualize_value(value: Any) -> Drawing:
    """A drawing of where the pieces of a value or a variable live, as far as this worker knows.

    Args:
        value: A variable, a per-replica or mirrored value, or a JAX array.

    Returns:
        The drawing.

    Raises:
        TypeError: If it is none of them.

    Example:
        >>> import numpy as np
        >>> import replicax as rx
        >>> from jax.sharding import PartitionSpec
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> rx.visualize_value(strategy.distribute_batch(np.arange(6.0)))
        PerReplica float32 on 2 replicas
          [0:3] on CPU:0
          [3:6] on CPU:1
        >>> with strategy.scope():
        ...     w = rx.Variable([[1.0, 2.0]], name="w")
        >>> rx.visualize_value(w)
        MirroredVariable 'w' float32[1, 2]
          [0:1, 0:2] on CPU:0, CPU:1
        >>> with rx.MirroredStrategy(logical_devices=4).scope():
        ...     w = rx.Variable([[1.0, 2.0]], name="w", partition_dimensions=PartitionSpec(
        ...         None, "logical_0"))
        >>> rx.visualize_value(w)
        MirroredVariable 'w' float32[1, 2] in 1 x 2 pieces
          [0:1, 0:1] on CPU:0, CPU:1, CPU:4, CPU:5
          [0:1, 1:2] on CPU:2, CPU:3, CPU:6, CPU:7
    """
    if isinstance(value, Variable):
        array = value._storage.live_array()
        shape = ", ".join(map(str, value.shape))
        title = f"{type(value).__name__} {value.name!r} {value.dtype}[{shape}]"
        if isinstance(value, ShardedVariable):
            return _of_parts(title, value)
        if any(piece > 1 for piece in value.partition_dimensions):
            title += f" in {' x '.join(map(str, value.partition_dimensions))} pieces"
        return _of_array(title, array)
    if isinstance(value, PerReplica):
        return _of_components(value)
    array = value._replicated() if isinstance(value, Mirrored) else value
    if not isinstance(array, jax.Array) or isinstance(array, Tracer):
        raise TypeError(
            f"visualize_value got {value!r}; expected a variable, a per-replica or mirrored value, "
            "or a JAX array, outside of compiled functions."
        )
    shape = ", ".join(map(str, array.shape))
    kind = "Mirrored" if isinstance(value, Mirrored) else "Array"
    return _of_array(f"{kind} {array.dtype}[{shape}]", array)


def _of_array(title: str, array: jax.Array) -> Drawing:
    holders: dict[Bounds, list[str]] = {}
    for shard in array.addressable_shards:
        bounds = tuple(
            part.indices(size)[:2] for part, size in zip(shard.index, array.shape, strict=True)
        )
        holders.setdefault(bounds, []).append(devices.device_name(shard.device))
    return Drawing(title, tuple(array.shape), [Block(b, tuple(h)) for b, h in holders.items()])


def _of_parts(title: str, variable: ShardedVariable) -> Drawing:
    """The elements in one row, in the order of the variable's own dims."""
    layout = variable._layout
    holders = map(devices.device_name, variable._devices_in_order)
    blocks = [
        Block(((start, stop),), (name,))
        for (start, stop), name in zip(variable._bounds, holders, strict=True)
        if start < stop
    ]
    return Drawing(f"{title}, elements in order", (layout.size,), blocks)


def _of_components(value: PerReplica) -> Drawing:
    """The components one after the other along dim 0."""
    mesh = value.mesh
    shapes = [shape or (1,) for shape in value.shapes]
    first = mesh.local_replicas.start
    start = sum(shape[0] for shape in shapes[:first])
    blocks = []
    for shape, row in zip(shapes[first:], mesh.local_logical_devices, strict=False):
        rest = tuple((0, size) for size in shape[1:])
        names = tuple(map(devices.device_name, row))
        blocks.append(Block(((start, start + shape[0]), *rest), names))
        start += shape[0]
    whole = (
        sum(shape[0] for shape in shapes),
        *map(max, zip(*(s[1:] for s in shapes), strict=True)),
    )
    return Drawing(f"PerReplica {value.dtype} on {mesh.num_replicas} replicas", whole, blocks)
