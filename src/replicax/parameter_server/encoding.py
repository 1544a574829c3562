"""Messages of parameter servers as text and raw buffers; nothing is pickled.

The structure of a message becomes JSON, which names the classes of `messages` and no others. Each
array leaves its dtype and shape there, and its bytes travel apart. Knows no sockets.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from replicax.core import bounded_json
from replicax.core.errors import ReplicaxError
from replicax.parameter_server import messages

MAX_TEXT_BYTES = 64 * 2**20
MAX_ARRAY_BYTES = 2**36

_NO_NUMBERS = "OSUMm"  # the kinds of dtypes whose bytes mean nothing elsewhere

_CLASSES: dict[str, Any] = {
    name: value
    for name, value in vars(messages).items()
    if isinstance(value, type) and value.__module__ == messages.__name__
}
_FIELDS = {
    name: tuple(field.name for field in dataclasses.fields(value))
    for name, value in _CLASSES.items()
    if dataclasses.is_dataclass(value)
}


class MessageError(ReplicaxError, ValueError):
    """A message cannot be written, or what has come is none."""


@dataclasses.dataclass(frozen=True, slots=True)
class BufferSpec:
    """An array whose bytes travel apart from the text.

    Attributes:
        dtype: The name of its dtype; empty for bytes.
        shape: Its shape.
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """How many bytes it has."""
        return math.prod(self.shape) * (jnp.dtype(self.dtype).itemsize if self.dtype else 1)

    def allocate(self) -> np.ndarray:
        """An array for it, as bytes.

        Raises:
            MessageError: If there is no memory for it.
        """
        try:
            return np.empty(self.num_bytes, np.uint8)
        except MemoryError as error:
            raise MessageError(f"there is no memory for {self.num_bytes} bytes.") from error

    def of(self, data: np.ndarray) -> Any:
        """What `data`, its bytes, mean."""
        if not self.dtype:
            return data.tobytes()
        return data.view(jnp.dtype(self.dtype)).reshape(self.shape)


def encode(message: Any) -> tuple[bytes, list[np.ndarray]]:
    """The text of a message, and the bytes of its arrays in their order.

    Raises:
        MessageError: If a part of it is neither a message, a number, text nor an array.

    Example:
        >>> text, buffers = encode(["x", np.ones(2, np.float32)])
        >>> text
        b'{"buffers":[["float32",[2]]],"message":["x",{"array":0}]}'
        >>> [buffer.size for buffer in buffers]
        [8]
    """
    writer = _Writer()
    written = writer.written(message)
    described = [[spec.dtype, spec.shape] for spec in writer.specs]
    text = json.dumps({"buffers": described, "message": written}, separators=(",", ":"))
    return text.encode(), writer.buffers


class _Writer:
    def __init__(self) -> None:
        self.specs: list[BufferSpec] = []
        self.buffers: list[np.ndarray] = []

    def written(self, value: Any) -> Any:
        """What JSON can carry of `value`; its arrays are kept apart."""
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, enum.Enum):
            return {"enum": [type(value).__name__, value.value]}
        if type(value) in (bool, int, float):
            return value
        if isinstance(value, list):
            return [self.written(item) for item in value]
        if isinstance(value, tuple):
            return {"tuple": [self.written(item) for item in value]}
        if isinstance(value, dict):
            pairs = value.items()
            return {"dict": [[self.written(key), self.written(item)] for key, item in pairs]}
        if isinstance(value, bytes):
            return {"array": self._apart("", (len(value),), np.frombuffer(value, np.uint8))}
        if isinstance(value, jax.export.Exported):
            return {"exported": self.written(bytes(value.serialize()))}
        if isinstance(value, jax.Array | np.ndarray | np.generic):
            array = np.asarray(value)
            if array.dtype.kind in _NO_NUMBERS:
                raise _cannot_travel(value)
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            return {"array": self._apart(array.dtype.name, array.shape, data)}
        name = type(value).__name__
        if name in _FIELDS and type(value) is _CLASSES[name]:
            return {"message": [name, [self.written(getattr(value, f)) for f in _FIELDS[name]]]}
        raise _cannot_travel(value)

    def _apart(self, dtype: str, shape: tuple[int, ...], data: np.ndarray) -> int:
        self.specs.append(BufferSpec(dtype, shape))
        self.buffers.append(data)
        return len(self.buffers) - 1


def _cannot_travel(value: object) -> MessageError:
    return MessageError(
        f"{value!r} of type {type(value).__name__} cannot travel between parameter servers and "
        "workers. Use arrays of numbers."
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ReceivedText:
    """The text of a message, before its arrays have come.

    Attributes:
        message: Its structure.
        buffers: The arrays that follow.
    """

    message: Any
    buffers: tuple[BufferSpec, ...]

    @classmethod
    def parse(cls, text: bytes) -> ReceivedText:
        """Reads a text.

        Raises:
            MessageError: If it is none, or announces arrays that are too large.
        """
        try:
            fields = bounded_json.parse(text, max_bytes=MAX_TEXT_BYTES)
            specs = tuple(
                BufferSpec(_dtype(dtype), tuple(map(_size, shape)))
                for dtype, shape in fields["buffers"]
            )
            total = sum(spec.num_bytes for spec in specs)
            message = fields["message"]
        except (bounded_json.JsonError, KeyError, TypeError, ValueError) as error:
            raise MessageError(f"{text[:60]!r} is no message: {error}") from error
        if total > MAX_ARRAY_BYTES:
            raise MessageError(
                f"a message announces {total} bytes of arrays; at most {MAX_ARRAY_BYTES} are read."
            )
        return cls(message, specs)

    def decode(self, data: Sequence[np.ndarray]) -> Any:
        """The message, of its text and the bytes of its arrays.

        Raises:
            MessageError: If the text means nothing.

        Example:
            >>> text, buffers = encode(("x", messages.Attempt(0, 7), np.ones(2, np.float32)))
            >>> ReceivedText.parse(text).decode(buffers)
            ('x', Attempt(epoch=0, closure=7, number=0), array([1., 1.], dtype=float32))
        """
        arrays = [spec.of(part) for spec, part in zip(self.buffers, data, strict=True)]
        try:
            return _read(self.message, arrays)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise MessageError(f"what has come is no message: {error!r}") from error


def _exported(data: bytes) -> jax.export.Exported:
    try:
        return jax.export.deserialize(bytearray(data))
    except Exception as error:  # of any class: it reads whatever the bytes say
        raise ValueError(f"{data[:20]!r} is no exported program") from error


def _dtype(value: Any) -> str:
    """`value` if it is the name of a dtype of numbers, or that of bytes, which is empty."""
    if value == "":
        return ""
    # Only names: NumPy evaluates parts of what else it takes for a dtype.
    if not (isinstance(value, str) and value.isidentifier()):
        raise ValueError(f"{value!r} is no dtype")
    dtype = jnp.dtype(value)
    if dtype.name != value or dtype.kind in _NO_NUMBERS or not dtype.itemsize:
        raise ValueError(f"{value!r} is no dtype of numbers")
    return value


def _size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no size")
    return value


def _read(written: Any, arrays: Sequence[Any]) -> Any:
    if isinstance(written, list):
        return [_read(item, arrays) for item in written]
    if not isinstance(written, dict):
        return written
    ((kind, content),) = written.items()
    match kind:
        case "array":
            return arrays[content]
        case "tuple":
            return tuple(_read(item, arrays) for item in content)
        case "dict":
            return {_read(key, arrays): _read(item, arrays) for key, item in content}
        case "exported":
            return _exported(_read(content, arrays))
        case "enum":
            name, value = content
            return _CLASSES[name](value)
        case "message":
            name, values = content
            return _CLASSES[name](*(_read(value, arrays) for value in values))
    raise ValueError(f"unknown kind {kind!r}")
