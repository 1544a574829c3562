"""Which checkpoints a folder holds, and which is the latest: a small file beside them.

Written after a checkpoint is complete, from one moment to the next. The order is that
of saving, not of the numbers: after going back to an earlier one they start again there.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from replicax.checkpoint import files

STATE_FILE = "checkpoint"


def now() -> float:
    """Seconds since 1970."""
    return time.time()


class Listing:
    """The checkpoints of one folder.

    Attributes:
        folder: The folder.
        times: When each was saved, in seconds since 1970, by name, oldest first.
        preserved: The names that no manager deletes.
    """

    def __init__(self, folder: Path) -> None:
        """Reads what the folder's file says; nothing if there is none that can be read."""
        self.folder = folder
        self.times: dict[str, float] = {}
        self.preserved: set[str] = set()
        try:
            content = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
            self.times = {str(name): float(when) for name, when in content["checkpoints"]}
            self.preserved = {str(name) for name in content["preserved"]}
        except (OSError, ValueError, KeyError, TypeError):
            return

    def paths(self) -> list[Path]:
        """The checkpoints that are there, oldest first."""
        paths = [self.folder / name for name in self.times]
        return [path for path in paths if files.is_complete(path)]

    def add(self, name: str) -> None:
        """Makes `name` the latest."""
        self.times.pop(name, None)
        self.times[name] = now()

    def write(self) -> None:
        """Writes the file, without checkpoints that are gone."""
        self.times = {n: t for n, t in self.times.items() if files.is_complete(self.folder / n)}
        kept = [[name, when] for name, when in self.times.items()]
        preserved = sorted(self.preserved & self.times.keys())
        text = json.dumps({"version": 1, "checkpoints": kept, "preserved": preserved})
        files.write_atomically(self.folder / STATE_FILE, text)


def note_saved(path: Path) -> None:
    """Makes the complete checkpoint `path` the latest of its folder."""
    listing = Listing(path.parent)
    listing.add(path.name)
    listing.write()


def latest_checkpoint(
    checkpoint_dir: str | os.PathLike[str], latest_filename: Any = None
) -> str | None:
    """The path of the checkpoint that was saved last in a folder, or None.

    Args:
        checkpoint_dir: The folder.
        latest_filename: Accepted because it is documented; the file has one name here.

    Returns:
        The path, or None if the folder has no checkpoint.

    Example:
        >>> import tempfile
        >>> import replicax.checkpoint.checkpoint as saved
        >>> folder = tempfile.mkdtemp()
        >>> latest_checkpoint(folder) is None
        True
        >>> path = saved.Checkpoint(epoch=1).save(f"{folder}/ckpt")
        >>> latest_checkpoint(folder) == path == f"{folder}/ckpt-1"
        True
    """
    del latest_filename
    paths = Listing(Path(checkpoint_dir).absolute()).paths()
    return str(paths[-1]) if paths else None
