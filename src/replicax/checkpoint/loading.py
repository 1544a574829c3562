"""Reads the arrays that the records of a checkpoint speak of, and checks that they are these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from replicax.checkpoint import files
from replicax.checkpoint.arrays import read_arrays
from replicax.checkpoint.entries import GROUPS, EntrySource
from replicax.checkpoint.errors import reason_of


def load(
    path: Path, manifest: Mapping[str, Any], sources: Sequence[EntrySource]
) -> dict[str, dict[str, Any]]:
    """The arrays of `sources`, by group and name.

    Args:
        path: The checkpoint.
        manifest: Its manifest.
        sources: What to read, and where to.

    Raises:
        DamagedCheckpointError: If there is no such array, or another one.
    """
    wanted: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
    arrays: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
    for source in sources:
        if 0 in source.shape:  # such an array is not written
            empty = np.zeros(source.shape, np.dtype(source.dtype))
            arrays[source.group][source.name] = empty
        else:
            wanted[source.group][source.name] = source.sharding
    try:
        read = read_arrays(files.data_folder(path, manifest) / files.ARRAYS, wanted)
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # of any class: what the files of a library can be is its own
        raise files.damaged(path, f"its arrays cannot be read: {reason_of(error)}") from error
    for source in [source for source in sources if 0 not in source.shape]:
        array = read[source.group].get(source.name)
        found = None if array is None else (array.shape, np.dtype(array.dtype).name)
        if found != (source.shape, source.dtype):
            expected = f"{source.shape} and {source.dtype}"
            there = "is missing" if found is None else f"has {found[0]} and {found[1]}"
            text = f"the array {source.name} {there}; {files.MANIFEST} says {expected}"
            raise files.damaged(path, text)
        arrays[source.group][source.name] = array
    return arrays
