"""Names that the documents place under ``tf.train``."""

import typing

from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.following import checkpoints_iterator
from replicax.checkpoint.latest import latest_checkpoint
from replicax.checkpoint.manager import CheckpointManager
from replicax.checkpoint.options import CheckpointOptions
from replicax.checkpoint.reader import list_variables, load_checkpoint
from replicax.cluster.spec import ClusterSpec
from replicax.tf.equivalents import missing as _missing

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "CheckpointOptions",
    "ClusterSpec",
    "checkpoints_iterator",
    "latest_checkpoint",
    "list_variables",
    "load_checkpoint",
]


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.train", name)
