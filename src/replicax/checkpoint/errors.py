"""What can be wrong with a checkpoint; part of the tree drawn in `core.errors`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from replicax.core.errors import ReplicaxError

_MOST_OF_REASON = 300
_OS_ERROR = re.compile(r"os_error_code='(\d{1,3})'")  # in TensorStore's pages of text


class CheckpointMismatchError(ReplicaxError, ValueError):
    """Saved values do not fit the objects they are for; nothing was overwritten."""


class DamagedCheckpointError(ReplicaxError, ValueError):
    """A checkpoint that is incomplete, or was changed since it was written."""


class CheckpointNotFoundError(ReplicaxError, FileNotFoundError):
    """There is no checkpoint at a path."""


class CheckpointWriteError(ReplicaxError, OSError):
    """A checkpoint could not be written; the earlier ones are as they were."""


class CheckpointObjectError(ReplicaxError, TypeError):
    """An object that a checkpoint cannot save or restore."""


class SavedModelError(ReplicaxError, ValueError):
    """A model that cannot be saved, or a path without one that can be loaded.

    Example:
        >>> import replicax as rx
        >>> rx.saved_model.load("/nowhere")
        Traceback (most recent call last):
            ...
        replicax.checkpoint.errors.SavedModelError: there is no checkpoint /nowhere. ...
    """


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


def reason_of(error: Exception) -> str:
    """The class of another library's error and the beginning of what it says.

    Example:
        >>> reason_of(ValueError("RESOURCE_EXHAUSTED: writing ... [os_error_code='28']"))
        'No space left on device'
    """
    code = _OS_ERROR.search(str(error))
    if code is not None:
        return os.strerror(int(code[1]))
    first, *more = str(error).splitlines() or [""]
    cut = "..." if more or len(first) > _MOST_OF_REASON else ""
    return f"{type(error).__name__}: {first[:_MOST_OF_REASON]}{cut}"


@contextlib.contextmanager
def reported_as_unwritten(path: Path) -> Iterator[None]:
    """Turns what goes wrong while files are written into one short error.

    Libraries report a full disk in errors of many classes and many lines.

    Raises:
        CheckpointWriteError: If anything goes wrong, except for what is our own error already.
    """
    try:
        yield
    except (ReplicaxError, ImportError, MemoryError):
        raise
    except Exception as error:
        raise CheckpointWriteError(
            f"the checkpoint {path} could not be written: {reason_of(error)}. "
            "Earlier checkpoints are as they were. Make room or mend the cause, and save again."
        ) from None
