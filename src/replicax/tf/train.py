"""Names that the documents place under ``tf.train``."""

from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.latest import latest_checkpoint
from replicax.checkpoint.manager import CheckpointManager
from replicax.checkpoint.options import CheckpointOptions
from replicax.checkpoint.reader import list_variables, load_checkpoint
from replicax.cluster.spec import ClusterSpec

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "CheckpointOptions",
    "ClusterSpec",
    "latest_checkpoint",
    "list_variables",
    "load_checkpoint",
]
