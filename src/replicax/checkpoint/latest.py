"""Which checkpoints a folder holds, and which is the latest: a small file beside them.

Written after a checkpoint is complete, from one moment to the next. The order is that
of saving, not of the numbers: after going back to an earlier one they start again there.
Where the file is lost or damaged, the checkpoints themselves tell.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from replicax.checkpoint import files
from replicax.checkpoint.errors import DamagedCheckpointError
from replicax.checkpoint.manifest import is_time
from replicax.checkpoint.owners import is_plain
from replicax.core import notices

STATE_FILE = "checkpoint"
SAVE_COUNTER = "save_counter"
"""The key of the count of saves, which every numbered checkpoint has and no other."""

VERSION = 1

_NUMBERED = re.compile(r".+-(\d+)")

Commit = Callable[[], None]


def now() -> float:
    """Seconds since 1970."""
    return time.time()


class Listing:
    """The checkpoints of one folder.

    Attributes:
        folder: The folder.
        times: When each was saved, in seconds since 1970, by name, oldest first.
        preserved: The names that no manager deletes.
        is_rebuilt: Whether the file was lost, so that `preserved` is not known.
    """

    def __init__(self, folder: Path) -> None:
        """Reads what the folder's file says, or else looks at the checkpoints."""
        self.folder = folder
        self.times: dict[str, float] = {}
        self.preserved: set[str] = set()
        self.is_rebuilt = False
        try:
            self._read(files.read_text(folder / STATE_FILE))
        except FileNotFoundError:
            self._rebuild("is missing")
        except (OSError, ValueError, RecursionError) as error:
            self._rebuild(f"cannot be used: {error}")

    def _read(self, text: str) -> None:
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("version") != VERSION:
            raise ValueError(f"it is no list of format {VERSION}")
        pairs, preserved = content.get("checkpoints"), content.get("preserved")
        if not isinstance(pairs, list) or not isinstance(preserved, list):
            raise ValueError("it has no lists of names")
        for pair in pairs:
            if not isinstance(pair, list) or len(pair) != 2 or not is_time(pair[1]):
                raise ValueError(f"it has the entry {str(pair)[:100]}")
        for name in [*(name for name, _ in pairs), *preserved]:
            if not isinstance(name, str) or name in ("", ".", "..") or re.search("[/\0]", name):
                raise ValueError(f"it has {str(name)[:100]!r}, which is no name in this folder")
            if (self.folder / name).is_symlink():
                raise ValueError(f"it has {name!r}, which is a link")
        self.times = {name: float(when) for name, when in pairs}
        self.preserved = set(preserved)

    def _rebuild(self, problem: str) -> None:
        """Lists every numbered checkpoint there is, also one that turns out to be damaged."""
        found = [path for path in _plain_folders(self.folder) if _NUMBERED.fullmatch(path.name)]
        times = {path.name: when for path in found if (when := _time_of(path)) is not None}
        if not times and problem == "is missing":
            return

        def age(name: str) -> tuple[float, int]:
            numbered = _NUMBERED.fullmatch(name)
            assert numbered is not None
            return times[name], int(numbered[1])

        self.is_rebuilt = True
        self.times = {name: times[name] for name in sorted(times, key=age)}
        notices.notify_once(
            ("list of checkpoints", str(self.folder), problem),
            f"the file {self.folder / STATE_FILE}, which lists the checkpoints, {problem}. "
            f"Their own times of saving are used instead: {list(self.times) or 'there are none'}. "
            "The next save writes the file again.",
        )

    def paths(self) -> list[Path]:
        """The checkpoints that are there, oldest first."""
        return [path for path in self.present() if files.is_complete(path)]

    def present(self) -> list[Path]:
        """The same, and those that have lost their manifest."""
        return [path for name in self.times if is_plain(path := self.folder / name)]

    def add(self, name: str) -> None:
        """Makes `name` the latest."""
        self.times.pop(name, None)
        self.times[name] = now()

    def write(self) -> None:
        """Writes the file, without checkpoints that are gone."""
        self.times = {path.name: self.times[path.name] for path in self.present()}
        kept = [[name, when] for name, when in self.times.items()]
        preserved = sorted(self.preserved & self.times.keys())
        text = json.dumps({"version": VERSION, "checkpoints": kept, "preserved": preserved})
        files.write_atomically(self.folder / STATE_FILE, text)


def _plain_folders(folder: Path) -> list[Path]:
    try:
        return [p for p in folder.iterdir() if is_plain(p) and p.is_dir()]
    except OSError:
        return []


def _time_of(path: Path) -> float | None:
    """When a numbered checkpoint was saved; None if it is none."""
    try:
        manifest = files.read_manifest(path)
    except (OSError, DamagedCheckpointError):
        try:
            return (path / files.MANIFEST).lstat().st_mtime
        except OSError:
            return None
    return manifest["saved"] if SAVE_COUNTER in manifest["records"] else None


def require_list(folder: Path) -> None:
    """Makes the file, before the first checkpoint is complete.

    So a folder that has checkpoints and no such file has lost it.
    """
    if not (folder / STATE_FILE).exists():
        listing = Listing(folder)
        if not listing.is_rebuilt:
            listing.write()


def complete(path: Path, commit: Commit) -> None:
    """Lets `commit` complete the numbered checkpoint `path`, also where a damaged one lies."""
    require_list(path.parent)
    files.make_way(path)
    commit()


def note_saved(path: Path, commit: Commit) -> None:
    """Lets `commit` complete the checkpoint `path`, and makes it the latest of its folder."""
    complete(path, commit)
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
