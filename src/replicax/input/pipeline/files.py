"""`TFRecordDataset` and `TextLineDataset`: the elements of files."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from replicax.core.errors import BatchError
from replicax.input.pipeline import arguments
from replicax.input.pipeline.dataset import Dataset
from replicax.input.pipeline.functions import Interleave, file_name
from replicax.input.pipeline.readers import (
    Files,
    Reader,
    check_compression,
    read_lines,
    read_records,
)
from replicax.input.pipeline.stage import Stage

_PARALLEL_READS = 8  # for AUTOTUNE; fixed, so that the order is the same on every machine


class TFRecordDataset(Dataset):
    """The records of TFRecord files, as bytes; their checksums are checked.

    Args:
        filenames: A file, a list of files, or a `Dataset` of file names.
        compression_type: None or "": files must not be compressed.
        buffer_size: Accepted.
        num_parallel_reads: How many files are read in turns, record by record; None reads
            one file after another.
        name: Accepted.

    Example:
        >>> import os, tempfile
        >>> from replicax.input.pipeline.readers import write_records
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "numbers.tfrecord")
        ...     write_records(path, [b"one", b"two"])
        ...     list(TFRecordDataset(path))
        [b'one', b'two']
    """

    def __init__(
        self,
        filenames: Any,
        compression_type: str | None = None,
        buffer_size: int | None = None,
        num_parallel_reads: int | None = None,
        name: str | None = None,
    ) -> None:
        check_compression(compression_type, "TFRecordDataset")
        super().__init__(_stage_of(filenames, read_records, num_parallel_reads, "TFRecordDataset"))


class TextLineDataset(Dataset):
    r"""The lines of text files, as bytes without the line ends.

    Args:
        filenames: A file, a list of files, or a `Dataset` of file names.
        compression_type: None or "": files must not be compressed.
        buffer_size: Accepted.
        num_parallel_reads: How many files are read in turns, line by line; None reads one
            file after another.
        name: Accepted.

    Example:
        >>> import os, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "numbers.txt")
        ...     with open(path, "w") as file:
        ...         _ = file.write("1\n2\n")
        ...     list(TextLineDataset(path).map(int))
        [np.int64(1), np.int64(2)]
    """

    def __init__(
        self,
        filenames: Any,
        compression_type: str | None = None,
        buffer_size: int | None = None,
        num_parallel_reads: int | None = None,
        name: str | None = None,
    ) -> None:
        check_compression(compression_type, "TextLineDataset")
        super().__init__(_stage_of(filenames, read_lines, num_parallel_reads, "TextLineDataset"))


def _stage_of(filenames: Any, read: Reader, num_parallel_reads: Any, reader: str) -> Stage:
    cycle = 1
    if num_parallel_reads is not None:
        cycle = _PARALLEL_READS if num_parallel_reads == -1 else num_parallel_reads
        cycle = arguments.batch_size(cycle, reader, "num_parallel_reads")
    if isinstance(filenames, Dataset):
        return Interleave(
            inputs=(filenames._stage,),
            stage_of=lambda element: Files(names=(file_name(element),), read=read),
            cycle_length=cycle,
            block_length=1,
        )
    return Files(names=_names(filenames, reader), read=read, num_parallel_reads=cycle)


def _names(filenames: Any, reader: str) -> tuple[str, ...]:
    if isinstance(filenames, (str, bytes, os.PathLike)):
        filenames = [filenames]
    names = np.ravel(filenames).tolist() if isinstance(filenames, np.ndarray) else filenames
    try:
        return tuple(os.fspath(os.fsdecode(name)) for name in names)
    except TypeError as error:
        raise BatchError(
            f"{reader} got {filenames!r}; expected the name of a file, a list of names, or a "
            "Dataset of names."
        ) from error
