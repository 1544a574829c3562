"""Looks into a checkpoint without any objects."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from replicax.checkpoint import files
from replicax.checkpoint.checkpoint import PathLike
from replicax.checkpoint.entries import VariableEntry, all_sources
from replicax.checkpoint.errors import CheckpointNotFoundError
from replicax.checkpoint.latest import latest_checkpoint
from replicax.checkpoint.loading import load


class CheckpointReader:
    """The variables of one checkpoint, by key.

    Args:
        path: The checkpoint, or a folder whose latest one is meant.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> from replicax.checkpoint.checkpoint import Checkpoint
        >>> path = Checkpoint(w=rx.Variable([1.0, 2.0])).write(f"{tempfile.mkdtemp()}/saved")
        >>> reader = CheckpointReader(path)
        >>> reader.get_variable_to_shape_map()
        {'w': [2]}
        >>> reader.get_tensor("w")
        array([1., 2.], dtype=float32)
    """

    def __init__(self, path: PathLike) -> None:
        """Reads what the checkpoint says of itself, and checks its files."""
        self._path = Path(path).absolute()
        if not files.is_complete(self._path):
            self._path = Path(latest_checkpoint(self._path) or self._path)
        self._manifest = files.read_manifest(self._path)
        files.verify(self._path, self._manifest)
        records = self._manifest["records"]
        self._records = {k: r for k, r in records.items() if r["kind"] == VariableEntry.kind}

    def has_tensor(self, name: str) -> bool:
        """Whether there is a variable with this key.

        Args:
            name: The key.

        Returns:
            True if the checkpoint has it.
        """
        return name in self._records

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """The shapes, by key."""
        return {key: list(record["shape"]) for key, record in self._records.items()}

    def get_variable_to_dtype_map(self) -> dict[str, np.dtype]:
        """The dtypes, by key."""
        return {key: np.dtype(record["dtype"]) for key, record in self._records.items()}

    def get_tensor(self, name: str) -> np.ndarray:
        """The value of a variable; with aggregation=NONE its copies, in front a dim for them.

        Args:
            name: The key.

        Returns:
            A host array.

        Raises:
            CheckpointNotFoundError: If there is no such variable.
            DamagedCheckpointError: If its array is not there any more.
        """
        record = self._records.get(name)
        if record is None:
            raise CheckpointNotFoundError(
                f"the checkpoint {self._path} has no variable {name!r}; it has "
                f"{sorted(self._records)}."
            )
        source = all_sources(name, record)[0]
        return load(self._path, self._manifest, [source])[source.group][name]


def load_checkpoint(ckpt_dir_or_file: PathLike) -> CheckpointReader:
    """A reader of a checkpoint, or of the latest in a folder.

    Args:
        ckpt_dir_or_file: The checkpoint, or a folder.

    Returns:
        The reader.

    Raises:
        CheckpointNotFoundError: If there is no checkpoint.
        DamagedCheckpointError: If it is incomplete, or was changed.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> import replicax.tf as tf
        >>> path = rx.Checkpoint(step=rx.Variable(3)).save(f"{tempfile.mkdtemp()}/ckpt")
        >>> list(tf.train.load_checkpoint(path).get_variable_to_shape_map().values())
        [[], []]
    """
    return CheckpointReader(ckpt_dir_or_file)


def list_variables(ckpt_dir_or_file: PathLike) -> list[tuple[str, list[int]]]:
    """Key and shape of every variable of a checkpoint, or of the latest in a folder.

    Args:
        ckpt_dir_or_file: The checkpoint, or a folder.

    Returns:
        Pairs of a key and a shape, in the order of the keys.

    Raises:
        CheckpointNotFoundError: If there is no checkpoint.
        DamagedCheckpointError: If it is incomplete, or was changed.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> from replicax.checkpoint.checkpoint import Checkpoint
        >>> list_variables(Checkpoint(w=rx.Variable(1.0)).write(f"{tempfile.mkdtemp()}/saved"))
        [('w', [])]
    """
    return sorted(CheckpointReader(ckpt_dir_or_file).get_variable_to_shape_map().items())
