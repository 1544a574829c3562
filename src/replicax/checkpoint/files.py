"""The folder of one checkpoint: complete, or not there.

Everything is written beside it, under a name that ends with ``.partial``, listed with
sizes and checksums in the manifest, and renamed at the end. Knows nothing of what the
values mean.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replicax.checkpoint.errors import CheckpointNotFoundError, DamagedCheckpointError

ARRAYS = "arrays"
MANIFEST = "replicax.json"
PARTIAL = ".partial"
REPLACED = ".replaced"
VERSION = 1

_BEGUN = "begun"
_CHUNK = 1 << 20
_SEEN_SECONDS = 10.0
_LOOK_SECONDS = 0.02


def partial_path(path: Path) -> Path:
    """Where the checkpoint `path` is until it is complete."""
    return path.with_name(path.name + PARTIAL)


def begin(path: Path) -> str:
    """Makes an empty folder for the parts of the checkpoint `path`.

    Returns:
        What `require_begun` must find there.
    """
    partial = partial_path(path)
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    partial.mkdir(parents=True)
    token = secrets.token_hex(8)
    (partial / _BEGUN).write_text(token, encoding="ascii")
    return token


def require_begun(path: Path, token: str) -> None:
    """Checks that another worker's `begin` is seen here; a network folder may need a moment.

    Raises:
        CheckpointNotFoundError: If it is not.
    """
    end = time.monotonic() + _SEEN_SECONDS
    while True:
        with contextlib.suppress(OSError):
            if (partial_path(path) / _BEGUN).read_text(encoding="ascii") == token:
                return
        if time.monotonic() > end:
            raise CheckpointNotFoundError(
                f"the checkpoint {path} that the first worker has begun is not there for this "
                f"worker. All workers must see the same folder: put {path.parent} on storage that "
                "they share."
            )
        time.sleep(_LOOK_SECONDS)


def abandon(path: Path) -> None:
    """Removes the parts of a checkpoint that will not be complete."""
    shutil.rmtree(partial_path(path), ignore_errors=True)


def commit(path: Path, content: Mapping[str, Any]) -> None:
    """Makes the parts a checkpoint, from one moment to the next.

    Args:
        path: The checkpoint.
        content: What its manifest says, beside the list of files.
    """
    partial = partial_path(path)
    (partial / _BEGUN).unlink()
    files = {
        file.relative_to(partial).as_posix(): [file.stat().st_size, _checksum(file)]
        for file in sorted(partial.rglob("*"))
        if file.is_file()
    }
    body = {"version": VERSION, **content, "files": files}
    text = json.dumps({"crc32": crc_of(body), "content": body})
    write_atomically(partial / MANIFEST, text)
    replaced = path.with_name(path.name + REPLACED)
    shutil.rmtree(replaced, ignore_errors=True)
    if path.exists():
        path.rename(replaced)
    partial.rename(path)
    _sync_folder(path.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def remove(path: Path) -> None:
    """Deletes a checkpoint; from one moment to the next it is none any more."""
    with contextlib.suppress(FileNotFoundError):
        (path / MANIFEST).unlink()
    shutil.rmtree(path, ignore_errors=True)


def is_complete(path: Path) -> bool:
    """Whether there is a checkpoint at `path`; its files are not looked at."""
    return (path / MANIFEST).is_file()


def read_manifest(path: Path) -> dict[str, Any]:
    """What the manifest of a checkpoint says.

    Raises:
        CheckpointNotFoundError: If there is no checkpoint.
        DamagedCheckpointError: If it is incomplete, or not as it was written.
    """
    if not path.is_dir():
        beside = sorted(p.parent.name for p in path.parent.glob(f"*/{MANIFEST}"))
        raise CheckpointNotFoundError(
            f"there is no checkpoint {path}. Checkpoints in {path.parent}: {beside or 'none'}."
        )
    try:
        document = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        content = document["content"]
        is_whole = document["crc32"] == crc_of(content)
    except FileNotFoundError:
        raise _damaged(path, f"{MANIFEST} is missing") from None
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"{MANIFEST} cannot be read: {error}") from error
    if not is_whole:
        raise _damaged(path, f"{MANIFEST} was changed since it was written")
    if content["version"] != VERSION:
        raise DamagedCheckpointError(
            f"the checkpoint {path} has format {content['version']}; this release reads format "
            f"{VERSION}. Restore it with the release that wrote it."
        )
    return content


def verify(path: Path, manifest: Mapping[str, Any]) -> None:
    """Checks every file of a checkpoint.

    Raises:
        DamagedCheckpointError: If one is missing or was changed; names all of them.
    """
    problems = []
    for name, (size, checksum) in manifest["files"].items():
        file = path / name
        try:
            found = file.stat().st_size
            if found != size:
                problems.append(f"{name} has {found} bytes instead of {size}")
            elif _checksum(file) != checksum:
                problems.append(f"{name} was changed since it was written")
        except FileNotFoundError:
            problems.append(f"{name} is missing")
        except OSError as error:
            problems.append(f"{name} cannot be read: {error}")
    if problems:
        raise _damaged(path, "; ".join(problems))


def states_file(rank: int) -> str:
    """The name of the file with the states that only one worker has."""
    return f"states-{rank}.json"


def write_states(path: Path, rank: int, states: Mapping[str, Any]) -> None:
    """Writes the states of one worker among the parts of the checkpoint `path`."""
    write_atomically(partial_path(path) / states_file(rank), json.dumps(states))


def read_states(path: Path, rank: int) -> dict[str, Any]:
    """The states of one worker.

    Raises:
        DamagedCheckpointError: If they cannot be read.
    """
    name = states_file(rank)
    try:
        return json.loads((path / name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path, f"{name} cannot be read: {error}") from error


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file by one with this text; readers see the old or the new one."""
    temporary = path.with_name(path.name + PARTIAL)
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _damaged(path: Path, reason: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        f"the checkpoint {path} is damaged: {reason}. Restore an earlier one."
    )


def crc_of(content: Any) -> str:
    """A checksum of plain values, the same wherever they are equal."""
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode('utf-8')):08x}"


def _checksum(file: Path) -> str:
    value = 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            value = zlib.crc32(chunk, value)
    return f"{value:08x}"
