"""The output of one worker: cut into lines, kept in a file, its end remembered.

It does not know colours or the terminal: lines go to a function of the caller.
"""

from __future__ import annotations

import collections
import contextlib
import pathlib
import time
from collections.abc import Callable
from typing import BinaryIO, TypeAlias

LineSink: TypeAlias = Callable[[int, str], None]
"""Called with the id of a worker and each line that it prints."""

KEPT_LINES = 50
_LONGEST_LINE = 65536


class LineSplitter:
    r"""Cuts a stream of bytes into lines of text.

    A line that is too long is cut, and what is no UTF-8 is replaced.

    Example:
        >>> splitter = LineSplitter()
        >>> splitter.feed(b"one\ntw"), splitter.feed(b"o\r\n"), splitter.feed(b"end")
        (['one'], ['two'], [])
        >>> splitter.flush()
        ['end']
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        return [_text(line) for line in lines]

    def flush(self) -> list[str]:
        """The last line, if it did not end."""
        lines = [_text(self._rest)] if self._rest else []
        self._rest = b""
        return lines


def _text(line: bytes) -> str:
    # A progress bar writes over itself: what stays on the screen is behind the last return.
    return line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]


class WorkerLog:
    r"""Where the output of one worker goes in one attempt.

    Args:
        worker_id: Whose output it is.
        on_line: Gets every line; None for none.
        path: The file that it is appended to; None for none.
        attempt: For the line that begins the attempt in the file.

    Example:
        >>> log = WorkerLog(1)
        >>> log.feed(b"first\nsecond")
        >>> log.close()
        >>> log.last_lines
        ('first', 'second')
    """

    def __init__(
        self,
        worker_id: int,
        on_line: LineSink | None = None,
        *,
        path: pathlib.Path | None = None,
        attempt: int = 1,
    ) -> None:
        self._worker_id = worker_id
        self._on_line = on_line
        self._splitter = LineSplitter()
        self._kept: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
        self._file: BinaryIO | None = None
        if path is not None:
            self._file = path.open("ab", buffering=0)
            started = time.strftime("%Y-%m-%d %H:%M:%S")
            self._file.write(f"--- attempt {attempt}, {started} ---\n".encode())

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The end of the output."""
        return tuple(self._kept)

    def feed(self, data: bytes) -> None:
        """Takes in what the worker has written."""
        if self._file is not None:
            self._file.write(data)
        self._take(self._splitter.feed(data))

    def close(self) -> None:
        """Takes in a line that did not end, and closes the file."""
        with contextlib.ExitStack() as stack:
            if self._file is not None:
                stack.callback(self._file.close)
            self._take(self._splitter.flush())

    def _take(self, lines: list[str]) -> None:
        self._kept.extend(lines)
        if self._on_line is not None:
            for line in lines:
                self._on_line(self._worker_id, line)


def log_path(folder: pathlib.Path | None, worker_id: int) -> pathlib.Path | None:
    """The file of a worker in the folder of the logs; None without one.

    Example:
        >>> log_path(pathlib.Path("logs"), 1).as_posix()
        'logs/worker-1.log'
    """
    return None if folder is None else folder / f"worker-{worker_id}.log"
