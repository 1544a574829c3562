"""The parts of a checkpoint that is being written: a folder beside it, renamed at the end.

The name of the folder says which process writes it. While it does, it gives a sign of life now
and then, for other machines that share the storage. `saving` is the caller.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replicax.checkpoint import files, leftovers
from replicax.checkpoint.errors import CheckpointNotFoundError, CheckpointWriteError
from replicax.checkpoint.owners import BEAT_SECONDS, SIGN, Owned

_SEEN_SECONDS = 10.0
_LOOK_SECONDS = 0.02


class Parts:
    """What there is of a checkpoint until it is complete.

    Attributes:
        path: The checkpoint.
        name: The name of the partial folder, by which other workers find it.
        folder: The partial folder.
        data: The folder in it that holds all files but the manifest.
    """

    def __init__(self, path: Path, name: str) -> None:
        """The parts of the checkpoint `path` in the folder `name` that a worker has begun."""
        owned = Owned.parse(name)
        assert owned is not None, name
        self.path = path
        self.name = name
        self.folder = path.with_name(name)
        self.data = self.folder / f"{files.DATA}{owned.token}"
        self._is_over = threading.Event()
        self._beating: threading.Thread | None = None

    @classmethod
    def begin(cls, path: Path) -> Parts:
        """Makes an empty folder for the parts of the checkpoint `path`."""
        leftovers.collect(path.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = cls(path, Owned.by_this_process(path.name).name)
        parts.folder.mkdir()
        (parts.folder / SIGN).touch()
        parts.data.mkdir()
        parts._beating = threading.Thread(target=parts._beat, name="replicax-parts", daemon=True)
        parts._beating.start()
        return parts

    def _beat(self) -> None:
        while not self._is_over.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):  # `commit` says what is wrong
                os.utime(self.folder / SIGN)

    def _stop_beating(self) -> None:
        self._is_over.set()
        if self._beating is not None:
            self._beating.join()

    def require_begun(self) -> None:
        """Checks that what another worker has begun is seen here.

        A network folder may need a moment.

        Raises:
            CheckpointNotFoundError: If it is not.
        """
        end = time.monotonic() + _SEEN_SECONDS
        while not self.data.is_dir():
            if time.monotonic() > end:
                raise CheckpointNotFoundError(
                    f"the checkpoint {self.path} that the first worker has begun is not there for "
                    f"this worker. All workers must see the same folder: put {self.path.parent} "
                    "on storage that they share."
                )
            time.sleep(_LOOK_SECONDS)

    def write_states(self, rank: int, states: Mapping[str, Any]) -> None:
        """Writes the states that only one worker has."""
        files.write_atomically(self.data / files.states_file(rank), json.dumps(states))

    def write_files(self, contents: Mapping[str, bytes]) -> None:
        """Writes files that are part of the checkpoint, by their names in its data folder."""
        for name, content in contents.items():
            file = self.data / name
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())

    def abandon(self) -> None:
        """Deletes the parts of a checkpoint that will not be complete."""
        self._stop_beating()
        shutil.rmtree(self.folder, ignore_errors=True)

    def commit(self, content: Mapping[str, Any]) -> None:
        """Makes the parts a checkpoint, from one moment to the next.

        Where there is one already, it is whole until its manifest is replaced by the new one.

        Args:
            content: What the manifest says, beside the list of files.

        Raises:
            CheckpointWriteError: If another process has taken the parts away.
        """
        listed = {
            file.relative_to(self.data).as_posix(): [file.stat().st_size, files.checksum_of(file)]
            for file in sorted(self.data.rglob("*"))
            if file.is_file()
        }
        body = {
            "version": files.VERSION,
            "saved": time.time(),
            "data": self.data.name,
            **content,
            "files": listed,
        }
        text = json.dumps({"crc32": files.crc_of(body), "content": body})
        files.write_atomically(self.folder / files.MANIFEST, text)
        self._stop_beating()
        try:
            # Who takes the parts away takes this along. A library that still writes may make
            # folders of the same names again, with some of the files.
            (self.folder / SIGN).unlink()
        except FileNotFoundError:
            raise CheckpointWriteError(
                f"the parts of the checkpoint {self.path} were deleted while it was written, "
                "by a process on another machine that saw no sign of life of this one. Earlier "
                "checkpoints are as they were. Save again."
            ) from None
        try:
            self.folder.rename(self.path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._replace()
        files.sync_folder(self.path.parent)

    def _replace(self) -> None:
        """Puts new data beside the old, then lets the manifest name it."""
        self.data.rename(self.path / self.data.name)
        files.sync_folder(self.path)
        (self.folder / files.MANIFEST).replace(self.path / files.MANIFEST)
        files.sync_folder(self.path)
        shutil.rmtree(self.folder, ignore_errors=True)
        leftovers.delete_unused_data(self.path)
