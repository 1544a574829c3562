"""Reads records and lines of files, checking what can be checked.

Files are read one after another, or in turns. A file is open only while its elements are
being read, and is closed when a pass is given up.
"""

from __future__ import annotations

import dataclasses
import os
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from replicax.core.errors import ReplicaxError
from replicax.core.spec import TensorSpec
from replicax.input.pipeline import elements
from replicax.input.pipeline.crc32c import masked_crc32c
from replicax.input.pipeline.stage import Rows, Stage
from replicax.input.pipeline.streams import interleaved, stream
from replicax.input.source import UNKNOWN

Reader = Callable[[str], Iterator[bytes]]
"""Reads the elements of one file."""

_LENGTH = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")


class DamagedFileError(ReplicaxError, ValueError):
    """A file does not hold what its format says it holds."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Files(Stage):
    """The elements of files.

    Attributes:
        names: The files.
        read: Reads one of them.
        num_parallel_reads: How many files are read in turns.
        relatives: Files of the same kind that others read, if this is a part of them.
    """

    names: tuple[str, ...]
    read: Reader
    num_parallel_reads: int = 1
    relatives: tuple[str, ...] = ()

    @property
    def is_indexed(self) -> bool:
        """Elements come one after another."""
        return False

    @property
    def count(self) -> int:
        return UNKNOWN

    @property
    def rows(self) -> Rows:
        return Rows(is_batch=False)

    @property
    def files(self) -> tuple[str, ...]:
        return self.names

    def of_files(self, files: tuple[str, ...]) -> Stage:
        """The same over some files; those of another reader are left out."""
        mine = set(self.names)
        return dataclasses.replace(
            self,
            names=tuple(name for name in files if name in mine),
            relatives=self.relatives or self.names,
        )

    def stream(self, epoch: int) -> Any:
        """Opens the files as their turn comes."""

        def start() -> Iterator[elements.Element]:
            return interleaved(
                stream(lambda: iter(self.names)),
                lambda name: stream(lambda: self._elements(name)),
                cycle_length=self.num_parallel_reads,
                block_length=1,
            )

        return stream(start)

    def _elements(self, name: str) -> Iterator[elements.Element]:
        for value in self.read(name):
            box = np.empty((), object)
            box[()] = value
            yield box

    def find_spec(self) -> Any:
        return TensorSpec((), object)

    def find_example(self) -> elements.Element:
        """The first that is found, for a part without elements among all files."""
        for name in (*self.names, *self.relatives):
            for element in self._elements(name):
                return element
        return elements.blank(self.spec)


def read_records(name: str) -> Iterator[bytes]:
    """The records of a TFRecord file.

    Raises:
        DamagedFileError: If it is cut off, or a checksum does not fit.
    """
    with open(name, "rb") as file:
        number = 0
        while header := file.read(_LENGTH.size):
            if len(header) < _LENGTH.size:
                raise _damaged(name, number, "is cut off")
            length, checksum = _LENGTH.unpack(header)
            if masked_crc32c(header[:8]) != checksum:
                raise _damaged(name, number, _no_header(header))
            left = os.fstat(file.fileno()).st_size - file.tell()
            if length + _CHECKSUM.size > left:
                raise _damaged(name, number, "is cut off")
            record = file.read(length)
            (checksum,) = _CHECKSUM.unpack(file.read(_CHECKSUM.size))
            if masked_crc32c(record) != checksum:
                raise _damaged(name, number, "does not fit its checksum")
            yield record
            number += 1


def _no_header(header: bytes) -> str:
    if header.startswith(b"\x1f\x8b"):
        return "is compressed with gzip; decompress the file first"
    return "has a length that does not fit its checksum"


def _damaged(name: str, number: int, reason: str) -> DamagedFileError:
    return DamagedFileError(
        f"record {number} of {name} {reason}. Expected a TFRecord file without compression: "
        "length, checksum, data, checksum for every record."
    )


def read_lines(name: str) -> Iterator[bytes]:
    """The lines of a text file without their ends."""
    with open(name, "rb") as file:
        for line in file:
            yield line.removesuffix(b"\n").removesuffix(b"\r")


def write_records(name: str | os.PathLike[str], records: Any) -> None:
    """Writes a TFRecord file, for tests and small examples.

    Args:
        name: The file.
        records: The records, bytes.
    """
    with open(name, "wb") as file:
        for record in records:
            length = struct.pack("<Q", len(record))
            file.write(length + _CHECKSUM.pack(masked_crc32c(length)))
            file.write(record + _CHECKSUM.pack(masked_crc32c(record)))


def check_compression(compression_type: Any, reader: str) -> None:
    """Refuses compressed files.

    Raises:
        ValueError: If a compression is named.
    """
    if compression_type not in (None, ""):
        raise ValueError(
            f"{reader} got compression_type={compression_type!r}; only files without compression "
            "are read. Decompress them first, or yield what they hold from from_generator."
        )
