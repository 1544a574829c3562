"""The folder of one checkpoint that is complete: what it says, and whether it is whole.

A checkpoint is a manifest and one data folder, which the manifest names. The manifest lists
every file with its size and checksum. Only regular files in the folder itself are read: no
links, no devices. `parts` writes checkpoints; nothing here knows what the values mean.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replicax.checkpoint import manifest as manifests
from replicax.checkpoint.errors import CheckpointNotFoundError, DamagedCheckpointError
from replicax.checkpoint.owners import Owned
from replicax.core import notices

ARRAYS = "arrays"
DAMAGED = ".damaged-"
DATA = "data-"
MANIFEST = "replicax.json"
REMOVED = ".removed-"
VERSION = 2

_CHUNK = 1 << 20
_MOST_BYTES = 1 << 30  # of a file that is read as a whole
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError)


def is_complete(path: Path) -> bool:
    """Whether there is a checkpoint at `path`; its files are not looked at."""
    try:
        return stat.S_ISREG((path / MANIFEST).lstat().st_mode)
    except OSError:
        return False


def read_manifest(path: Path) -> dict[str, Any]:
    """What the manifest of a checkpoint says; every field has been checked.

    Raises:
        CheckpointNotFoundError: If there is no checkpoint.
        DamagedCheckpointError: If it is incomplete, or not as it was written.
    """
    if not path.is_dir():
        if os.path.lexists(path):
            raise damaged(path, "it is a file, a device or a link to nothing instead of a folder")
        beside = sorted(p.parent.name for p in path.parent.glob(f"*/{MANIFEST}"))
        raise CheckpointNotFoundError(
            f"there is no checkpoint {path}. Checkpoints in {path.parent}: {beside or 'none'}."
        )
    try:
        document = json.loads(read_text(path / MANIFEST))
        content = document["content"]
        is_whole = document["crc32"] == crc_of(content)
    except FileNotFoundError:
        raise damaged(path, f"{MANIFEST} is missing") from None
    except _UNREADABLE as error:
        raise damaged(path, f"{MANIFEST} cannot be read: {error}") from error
    if not is_whole:
        raise damaged(path, f"{MANIFEST} was changed since it was written")
    version = content.get("version") if isinstance(content, dict) else None
    if type(version) is int and version != VERSION:
        raise DamagedCheckpointError(
            f"the checkpoint {path} has format {version}; this release reads format {VERSION}. "
            "Restore it with the release that wrote it."
        )
    try:
        manifests.check(content)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"{MANIFEST} has wrong contents: {error}") from error
    return content


def data_folder(path: Path, manifest: Mapping[str, Any]) -> Path:
    """Where the files are that the manifest lists."""
    return path / manifest["data"]


def verify(path: Path, manifest: Mapping[str, Any]) -> None:
    """Checks every file of a checkpoint.

    Raises:
        DamagedCheckpointError: If one is missing or was changed; names all of them.
    """
    data = data_folder(path, manifest)
    problems: list[str] = []
    try:
        found = _files_in(data, problems)
    except OSError as error:
        raise damaged(path, f"{manifest['data']} cannot be read: {error}") from error
    for name, (size, checksum) in manifest["files"].items():
        if name not in found:
            there = (data / name).is_dir()
            problems.append(f"{name} is " + ("a folder instead of a file" if there else "missing"))
        elif found[name] != size:
            problems.append(f"{name} has {found[name]} bytes instead of {size}")
        else:
            try:
                if checksum_of(data / name) != checksum:
                    problems.append(f"{name} was changed since it was written")
            except OSError as error:
                problems.append(f"{name} cannot be read: {error}")
    if problems:
        raise damaged(path, "; ".join(problems))


def _files_in(data: Path, problems: list[str]) -> dict[str, int]:
    """The sizes of all regular files; what is neither file nor folder is a problem."""
    if not stat.S_ISDIR(data.lstat().st_mode):
        raise NotADirectoryError(f"{data.name} is no folder")
    found: dict[str, int] = {}
    folders = [data]
    while folders:
        for entry in os.scandir(folders.pop()):
            name = Path(entry.path).relative_to(data).as_posix()
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                found[name] = entry.stat(follow_symlinks=False).st_size
            else:
                problems.append(f"{name} is a link or a device instead of a file")
    return found


def states_file(rank: int) -> str:
    """The name of the file with the states that only one worker has."""
    return f"states-{rank}.json"


def read_states(path: Path, manifest: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """The states of one worker, by key.

    Raises:
        DamagedCheckpointError: If they cannot be read, or are not those in the manifest.
    """
    name = states_file(rank)
    try:
        states = json.loads(read_text(data_folder(path, manifest) / name))
        manifests.check_states(states, manifest["records"])
    except _UNREADABLE as error:
        raise damaged(path, f"{name} cannot be read: {error}") from error
    return states


def remove(path: Path) -> None:
    """Deletes a checkpoint, or what is left of one; it is gone from one moment to the next.

    Whoever renames it deletes it. If that process ends too early, `leftovers` goes on.
    """
    owned = Owned.parse(path.name)
    name = path.name if owned is None else owned.of
    gone = path.with_name(f"{name}{REMOVED}{secrets.token_hex(8)}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(gone)
        delete(gone)


def make_way(path: Path) -> None:
    """Renames what lies at `path` and cannot be replaced by a checkpoint; deletes nothing."""
    try:
        is_folder = stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if is_folder and not (path / MANIFEST).is_dir():
        return
    aside = path.with_name(f"{path.name}{DAMAGED}{secrets.token_hex(8)}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
        notices.notify_once(
            ("in the way", str(aside)),
            f"{path} was no checkpoint, and in the way of the next one. It is {aside.name} now.",
        )


def delete(path: Path) -> None:
    """Deletes a file or folder as far as possible; never what a link leads to."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def read_text(file: Path) -> str:
    """The text of a regular file.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is a link, a folder or a device, far too large, or no text.
    """
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{file.name} is a link, a folder or a device instead of a file")
    if status.st_size > _MOST_BYTES:
        raise ValueError(f"{file.name} has {status.st_size} bytes; {_MOST_BYTES} are too many")
    # These flags are for one that became a link or a pipe since.
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, encoding="utf-8") as stream:
        return stream.read(_MOST_BYTES)


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file by one with this text; readers see the old or the new one."""
    temporary = path.with_name(Owned.by_this_process(path.name).name)
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Returns when the names in a folder are on the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def damaged(path: Path, reason: str) -> DamagedCheckpointError:
    """The error for a checkpoint that is not whole."""
    return DamagedCheckpointError(
        f"the checkpoint {path} is damaged: {reason}. Restore an earlier one."
    )


def crc_of(content: Any) -> str:
    """A checksum of plain values, the same wherever they are equal."""
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode('utf-8')):08x}"


def checksum_of(file: Path) -> str:
    """The checksum of a file."""
    value = 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            value = zlib.crc32(chunk, value)
    return f"{value:08x}"
