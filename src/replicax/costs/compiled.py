"""Reads a compiled program: its collectives from its text, its memory from XLA's analysis.

The text (HLO) is that of one device. It has what the trace does not: the collectives that XLA's
partitioner puts in for logical devices, and those that XLA has put together or left out. Each
still knows the user's line.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from replicax.core.notices import JAX_DIR, PACKAGE_DIR
from replicax.costs.collectives import ALL_DEVICES, LOGICAL_DEVICES, REPLICAS, Collective
from replicax.jax_internals.programs import UNKNOWN_LINE

_KINDS = {
    kind: kind
    for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
} | {"collective-broadcast": "broadcast", "ragged-all-to-all": "all-to-all"}

_HEADER = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,<=]*)\]")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|called_computations)=\{?%?([\w.\-]+)")
_BRANCHES = re.compile(
    r"\b(?:branch_computations=\{([^}]*)\}|(?:true|false)_computation=(%?[\w.\-]+))"
)
_ORDER = r"\[([\d,]+)\](?:T\(([\d,]+)\))?"
"""How XLA writes an order of devices: all numbers in this shape, and how it is transposed."""

_TILED = re.compile(rf"replica_groups=\[([\d,]+)\]<={_ORDER}")
_MESH = re.compile(rf"replica_groups=mesh\[(.*?)\](?:, device_ids=\({_ORDER}\))? \{{(.*?)\}}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_FIELDS = re.compile(r"(\w+)=(\d+)")


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledMemory:
    """The memory of one device, as XLA has planned it.

    Attributes:
        arguments: Bytes of the inputs: variables, and what is passed to the step.
        outputs: Bytes of the outputs.
        donated: Bytes of the outputs that take the place of inputs.
        temporaries: Bytes of everything between: activations, gradients, scratch.
        code: Bytes of the program itself, where the platform counts them.
    """

    arguments: int
    outputs: int
    donated: int
    temporaries: int
    code: int

    @property
    def total(self) -> int:
        """Bytes in use at once, at most."""
        return self.arguments + self.outputs - self.donated + self.temporaries + self.code


@dataclasses.dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiled program says of itself.

    Attributes:
        memory: Its memory on one device.
        collectives: Its collectives, one for each operation of the compiled program.
        flops: XLA's own count on one device; a body of a loop counts once.
        bytes_accessed: XLA's own count of what is read and written, of the same kind.
    """

    memory: CompiledMemory
    collectives: tuple[Collective, ...]
    flops: float
    bytes_accessed: float


def read_compiled(compiled: Any, *, num_logical_devices: int = 1) -> Compiled:
    """What a compiled program says of itself.

    Args:
        compiled: A ``jax.stages.Compiled``.
        num_logical_devices: How many devices of the program one replica spans.

    Returns:
        Its memory, its collectives and its operations.

    Example:
        >>> import jax
        >>> program = jax.jit(lambda x: x @ x).lower(jax.numpy.ones((8, 8))).compile()
        >>> read_compiled(program).memory.arguments
        256
    """
    memory, costs = compiled.memory_analysis(), compiled.cost_analysis() or {}
    return Compiled(
        CompiledMemory(
            memory.argument_size_in_bytes,
            memory.output_size_in_bytes,
            memory.alias_size_in_bytes,
            memory.temp_size_in_bytes,
            memory.generated_code_size_in_bytes,
        ),
        tuple(collectives_in(compiled.as_text(), num_logical_devices=num_logical_devices)),
        costs.get("flops", 0.0),
        costs.get("bytes accessed", 0.0),
    )


def collectives_in(text: str, *, num_logical_devices: int = 1) -> list[Collective]:
    """The collectives in the text of a compiled program.

    Args:
        text: What ``as_text`` of a compiled program gives.
        num_logical_devices: How many devices of the program one replica spans.

    Returns:
        One for each operation, with how often a step executes it.
    """
    module = _Module(text)
    return [
        _collective(module, op, count, in_branch, num_logical_devices)
        for op, count, in_branch in module.executed()
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class _Operation:
    """One line of the text.

    Attributes:
        kind: Its opcode.
        result: The type of its result.
        operands: The names of its operands.
        rest: The line after the opcode.
    """

    kind: str
    result: str
    operands: tuple[str, ...]
    rest: str


class _Module:
    """The text of a program, taken apart.

    Attributes:
        types: The type of what each operation gives, by its name.
        num_devices: How many devices it is for.
    """

    def __init__(self, text: str) -> None:
        self.types: dict[str, str] = {}
        self._computations: dict[str, list[_Operation]] = {}
        self._entry = ""
        self._text = text
        self.num_devices = _number_after("num_partitions=", text)
        self.num_devices *= _number_after("replica_count=", text)
        current: list[_Operation] = []
        for line in text.splitlines():
            header = _HEADER.match(line)
            if header is not None and " = " not in line.split("(")[0]:
                current = self._computations[header[1]] = []
                self._entry = header[1] if line.startswith("ENTRY") else self._entry
                continue
            match = _INSTRUCTION.match(line)
            if match is None:
                continue
            name, result, kind, rest = match.groups()
            self.types[name] = result
            operands = re.findall(r"%([\w.\-]+)", rest.split("), ")[0])
            current.append(_Operation(kind, result, tuple(operands), rest))

    def executed(self) -> Iterator[tuple[_Operation, int | None, bool]]:
        """The collectives in the order of the text, how often each is executed, and in a branch."""
        return self._in(self._entry, 1, in_branch=False)

    def _in(
        self, name: str, count: int | None, *, in_branch: bool
    ) -> Iterator[tuple[_Operation, int | None, bool]]:
        for op in self._computations.get(name, ()):
            if op.kind.removesuffix("-start") in _KINDS:
                yield op, count, in_branch
                continue
            branches = [
                inner.strip().lstrip("%")
                for many, one in _BRANCHES.findall(op.rest)
                for inner in (many or one).split(",")
            ]
            for inner in branches:
                yield from self._in(inner, count, in_branch=True)
            times: int | None = 1
            if op.kind == "while":
                trips = _TRIPS.search(op.rest)
                times = None if trips is None else int(trips[1])
            inside = None if count is None or times is None else count * times
            for inner in _CALLED.findall(op.rest):
                yield from self._in(inner, inside, in_branch=in_branch)

    def line_of(self, op: _Operation) -> str:
        """The user's ``file:line`` of an operation."""
        match = _FRAME.search(op.rest)
        return UNKNOWN_LINE if match is None else self._user_line(int(match[1]))

    def _user_line(self, frame: int) -> str:
        names, locations, frames = self._tables
        while frame in frames:
            location, frame = frames[frame]
            name_id, line = locations.get(location, (0, 0))
            name = names.get(name_id, "")
            if name and not name.startswith((PACKAGE_DIR, JAX_DIR)):
                return f"{name}:{line}"
        return UNKNOWN_LINE

    @functools.cached_property
    def _tables(self) -> tuple[dict[int, str], dict[int, _Pair], dict[int, _Pair]]:
        """The names of files, the locations (file, line), and the frames (location, parent)."""
        names: dict[int, str] = {}
        locations: dict[int, _Pair] = {}
        frames: dict[int, _Pair] = {}
        section, first_parent = "", 0
        for line in self._text.splitlines():
            if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
                section = line
                continue
            number, _, rest = line.partition(" ")
            if not number.isdecimal():
                section = ""
                continue
            fields = {key: int(value) for key, value in _FIELDS.findall(rest)}
            if section == "FileNames":
                names[int(number)] = rest.strip('"')
            elif section == "FileLocations":
                locations[int(number)] = fields.get("file_name_id", 0), fields.get("line", 0)
            elif section == "StackFrames":
                parent = fields.get("parent_frame_id", 0)
                if not frames:  # it has no parent; XLA prints all of them one too large
                    first_parent = parent
                frames[int(number)] = fields.get("file_location_id", 0), parent - first_parent
        return names, locations, frames


_Pair = tuple[int, int]


def _collective(
    module: _Module, op: _Operation, count: int | None, in_branch: bool, num_logical_devices: int
) -> Collective:
    kind = _KINDS[op.kind.removesuffix("-start")]
    arrays = [array for name in op.operands for array in _ARRAY.findall(module.types.get(name, ""))]
    group = _group(op.rest, module.num_devices)
    return Collective(
        kind,
        tuple(_num_bytes(dtype, dims) for dtype, dims in arrays),
        tuple(sorted({str(_NAMES.get(dtype, dtype)) for dtype, _ in arrays})),
        len(group),
        _over(group, num_logical_devices),
        count,
        in_branch,
        module.line_of(op),
    )


def _group(rest: str, num_devices: int) -> list[int]:
    """The devices that meet, of one group; the others are like it."""
    pairs = re.search(r"source_target_pairs=\{\{(.*?)\}\}", rest)
    if pairs is not None:
        numbers = [tuple(map(int, pair.split(","))) for pair in pairs[1].split("},{")]
        first = next((pair for pair in numbers if pair[0] != pair[1]), numbers[0])
        return list(first)
    listed = re.search(r"replica_groups=\{\{([\d,]*)\}", rest)
    if listed is not None:
        return [int(number) for number in listed[1].split(",") if number]
    tiled = _TILED.search(rest)
    if tiled is not None:
        return _row(_order(tiled[2], tiled[3]).reshape(_ints(tiled[1])), [1])
    mesh = _MESH.search(rest)
    return list(range(num_devices)) if mesh is None else _along(*mesh.groups())


def _along(axes: str, dims: str | None, transposed: str | None, chosen: str) -> list[int]:
    """The first devices along some axes of a mesh, or along parts of them, as Shardy writes it.

    A part ``(before)middle`` of an axis is the second dim of it, seen as (before, middle, rest).
    """
    parts = {name: part for name, *part in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", chosen)}
    shape: list[int] = []
    picked = []
    for name, number in re.findall(r"'([^']+)'=(\d+)", axes):
        before, middle, size = 1, 1, int(number)
        if name in parts:
            before, middle = (
                int(given or whole) for given, whole in zip(parts[name], (1, size), strict=True)
            )
            picked.append(len(shape) + 1)
        shape += [before, middle, size // (before * middle)]
    order = np.arange(math.prod(shape)) if dims is None else _order(dims, transposed)
    return _row(order.reshape(shape), picked)


def _order(dims: str, transposed: str | None) -> np.ndarray:
    shape = _ints(dims)
    axes = _ints(transposed) if transposed else range(len(shape))
    return np.arange(math.prod(shape)).reshape(shape).transpose(list(axes)).reshape(-1)


def _row(devices: np.ndarray, dims: list[int]) -> list[int]:
    """The first devices along some dims of an array of devices."""
    size = math.prod(devices.shape[dim] for dim in dims)
    last = list(range(devices.ndim - len(dims), devices.ndim))
    rows = np.moveaxis(devices, dims, last).reshape(-1, size)
    return [int(number) for number in rows[0]]


def _ints(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _over(group: list[int], num_logical_devices: int) -> str:
    """What the devices of a group are; those of one replica follow one another."""
    if len({number // num_logical_devices for number in group}) == 1 and num_logical_devices > 1:
        return LOGICAL_DEVICES
    is_one_each = len({number % num_logical_devices for number in group}) == 1
    return REPLICAS if is_one_each else ALL_DEVICES


_NAMES: dict[str, str] = {
    "pred": "bool",
    "bf16": "bfloat16",
    **{f"s{bits}": f"int{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"c{bits}": f"complex{bits}" for bits in (64, 128)},
}
"""The types of XLA, as NumPy and JAX call them; the others have the same name in both."""


def _num_bytes(dtype: str, dims: str) -> int:
    bits = re.search(r"\d+", dtype)  # of f8e4m3fn the first number counts
    size = math.prod(int(dim.lstrip("<=")) for dim in dims.split(",") if dim)
    return -(-size * (8 if bits is None else int(bits[0])) // 8)


def _number_after(label: str, text: str) -> int:
    match = re.search(re.escape(label) + r"(\d+)", text[:100_000])
    return 1 if match is None else int(match[1])
