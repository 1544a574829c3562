"""What can be wrong with a checkpoint; part of the tree drawn in `core.errors`."""

from __future__ import annotations

from collections.abc import Sequence

from replicax.core.errors import ReplicaxError


class CheckpointMismatchError(ReplicaxError, ValueError):
    """Saved values do not fit the objects they are for; nothing was overwritten."""


class DamagedCheckpointError(ReplicaxError, ValueError):
    """A checkpoint that is incomplete, or was changed since it was written."""


class CheckpointNotFoundError(ReplicaxError, FileNotFoundError):
    """There is no checkpoint at a path."""


class CheckpointObjectError(ReplicaxError, TypeError):
    """An object that a checkpoint cannot save or restore."""


class UnmatchedValuesError(ReplicaxError, AssertionError):
    """Saved values without an object, or objects without a saved value."""


class OtherWorkerError(ReplicaxError, RuntimeError):
    """Another worker could not save or restore, so that this one does not either."""


def mismatch(path: str, differences: Sequence[str]) -> CheckpointMismatchError:
    """The error that lists every difference between a checkpoint and the objects."""
    rows = "".join(f"\n  {difference}" for difference in differences)
    count = f"{len(differences)} difference" + ("s" if len(differences) > 1 else "")
    return CheckpointMismatchError(
        f"the checkpoint {path} does not fit; nothing was restored. {count}:{rows}\nCreate the "
        "objects as they were when it was saved, or restore a Checkpoint of those that fit."
    )
