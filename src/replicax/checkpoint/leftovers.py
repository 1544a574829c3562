"""Deletes what processes left behind that were killed while they saved or deleted.

Nothing that somebody may still be writing is touched:

- a partial file or folder goes when its owner has ended. It is renamed first, to a name that only
  the one who deletes it has. An owner that goes on after all then fails, and damages nothing;
- what has been renamed for deletion belongs to nobody, and may be deleted by all at once;
- data of a checkpoint that its manifest does not name goes when no partial folder has its token.
  Whoever replaces a checkpoint keeps that folder until the manifest names the new data.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path

from replicax.checkpoint import files
from replicax.checkpoint.errors import DamagedCheckpointError
from replicax.checkpoint.owners import Owned, is_plain

_REMOVED = re.compile(r".+\.removed-[0-9a-f]{16}")
_DATA = re.compile(r"data-(?P<token>[0-9a-f]{16})")


def collect(folder: Path) -> None:
    """Deletes abandoned parts in `folder`, and what was being deleted."""
    for path in _plain_in(folder):
        with contextlib.suppress(OSError):  # perhaps it may only be read
            owned = Owned.parse(path.name)
            if owned is not None and owned.is_abandoned(folder):
                files.remove(path)
            elif _REMOVED.fullmatch(path.name):
                files.delete(path)


def collect_data(folder: Path) -> None:
    """Deletes data in the checkpoints of `folder` that belongs to none of them."""
    for path in _plain_in(folder):
        if files.is_complete(path):
            delete_unused_data(path)


def delete_unused_data(path: Path) -> None:
    """Deletes data in the checkpoint `path` that its manifest does not name."""
    # Looked at in this order: who still has a partial folder may be about to replace the manifest.
    tokens = [found["token"] for p in _plain_in(path) if (found := _DATA.fullmatch(p.name))]
    if len(tokens) < 2:
        return
    partial = [Owned.parse(p.name) for p in _plain_in(path.parent)]
    written = {owned.token for owned in partial if owned is not None}
    try:
        used = files.read_manifest(path)["data"]
    except (OSError, DamagedCheckpointError):
        return
    for name in [f"{files.DATA}{token}" for token in tokens if token not in written]:
        if name != used:
            shutil.rmtree(path / name, ignore_errors=True)


def _plain_in(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder) if is_plain(folder / name)]
    except OSError:
        return []
