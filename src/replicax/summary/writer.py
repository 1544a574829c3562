"""`SummaryWriter`: takes values that may not have been computed yet, and writes them later.

A thread of its own awaits the values, so that neither a step nor its caller waits for them. Of
several workers the first one writes; the others have writers that take nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import dataclasses
import functools
import os
import pathlib
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from replicax.backend import workers
from replicax.core import notices
from replicax.core.errors import ContextError
from replicax.core.extras import require_extra
from replicax.engine.trace.frame import current_frame
from replicax.summary.events import PROTOS, EventFile
from replicax.summary.steps import get_step, set_step
from replicax.values.distributed import Mirrored, PerReplica

PathLike = str | os.PathLike[str]

MAX_WAITING = 1000
"""How many values may wait to be written; then who records the next one waits."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Waiting:
    """A value to be written.

    Attributes:
        kind: One of `PROTOS`.
        tag: Its name.
        value: An array, perhaps not computed yet.
        step: An int or an array.
        seconds: When it was recorded.
        options: For the function in `PROTOS`.
    """

    kind: str
    tag: str
    value: Any
    step: Any
    seconds: float
    options: dict[str, Any]


class SummaryWriter:
    """Writes summaries to a folder; made by `create_file_writer`.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> writer = rx.summary.create_file_writer(tempfile.mkdtemp())
        >>> with writer.as_default(step=3):
        ...     rx.summary.scalar("loss", 0.5)
        >>> writer.close()
    """

    def __init__(
        self, folder: pathlib.Path | None, seconds_between: float, suffix: str, max_waiting: int
    ) -> None:
        """A writer to `folder`; None for one that takes nothing."""
        self._folder = folder
        self._seconds_between = seconds_between
        self._suffix = suffix
        self._waiting: queue.Queue[_Waiting | threading.Event | None] = queue.Queue(max_waiting)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        self._errors: list[Exception] = []
        if folder is not None:
            _open.add(self)

    def __repr__(self) -> str:
        return f"<SummaryWriter to {self._folder or 'nowhere'}>"

    @contextlib.contextmanager
    def as_default(self, step: Any = None) -> Iterator[SummaryWriter]:
        """Makes this the writer of the summaries of this thread.

        Args:
            step: The step meanwhile, as `set_step` takes it; None leaves it as it is.

        Returns:
            A context manager.
        """
        outer, outer_step = _default.get(), get_step()
        self.set_as_default(step)
        try:
            yield self
        finally:
            _default.set(outer)
            set_step(outer_step)
            self.flush()

    def set_as_default(self, step: Any = None) -> None:
        """Makes this the writer of the summaries of this thread from now on.

        Args:
            step: As for `as_default`.

        Raises:
            ContextError: If it is closed.
        """
        if self._is_closed:
            raise ContextError(f"{self!r} is closed. Create another one.")
        _default.set(self)
        if step is not None:
            set_step(step)

    def init(self) -> None:
        """Accepted because it is documented: a writer is ready for use."""

    def flush(self) -> None:
        """Returns when everything that was recorded is in the file; waits for its values.

        Raises:
            OSError: If something could not be written.
        """
        if self._thread is not None and not self._is_closed:
            done = threading.Event()
            self._waiting.put(done)
            done.wait()
        self._raise_errors()

    def close(self) -> None:
        """Flushes, and closes the file; the writer takes nothing after that."""
        with self._lock:
            thread, self._is_closed = self._thread, True
        if thread is not None:
            self._waiting.put(None)
            thread.join()
            self._thread = None
        _open.discard(self)
        self._raise_errors()

    def _raise_errors(self) -> None:
        errors, self._errors = self._errors, []
        if errors:
            raise errors[0]

    # -- recording -----------------------------------------------------------------------------

    def _record(self, kind: str, tag: str, value: Any, step: Any, options: dict[str, Any]) -> None:
        """Takes a value, and returns at once."""
        if self._folder is None or self._is_closed:
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_write_all,
                    args=(self._folder, self._suffix, self._waiting, self._seconds_between,
                          self._errors.append),
                    name="replicax-summary",
                    daemon=True,
                )  # fmt: skip
                self._thread.start()
        self._waiting.put(_Waiting(kind, tag, value, step, time.time(), options))


_open: weakref.WeakSet[SummaryWriter] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for writer in list(_open):
        with contextlib.suppress(Exception):  # nobody is left to be told
            writer.close()


def _write_all(
    folder: pathlib.Path,
    suffix: str,
    waiting: queue.Queue[Any],
    seconds_between: float,
    report: Callable[[Exception], None],
) -> None:
    """What the thread of a writer does."""
    file: EventFile | None = None
    flushed = time.monotonic()
    while (record := waiting.get()) is not None:
        try:
            if isinstance(record, threading.Event):
                if file is not None:
                    file.flush()
                continue
            file = EventFile(folder, suffix) if file is None else file
            proto = PROTOS[record.kind](record.tag, _fetched(record.value), **record.options)
            file.write(proto, int(_fetched(record.step)), record.seconds)
            if time.monotonic() - flushed > seconds_between:
                file.flush()
                flushed = time.monotonic()
        except Exception as error:  # of any class: the next flush raises it
            report(error)
        finally:
            if isinstance(record, threading.Event):
                record.set()
    if file is not None:
        try:
            file.close()
        except OSError as error:
            report(error)


def _fetched(value: Any) -> np.ndarray:
    """The value on the host; waits until it has been computed."""
    return np.asarray(value)


# Of the context, which the threads of eager replicas share with the thread that started them.
_default: contextvars.ContextVar[SummaryWriter | None] = contextvars.ContextVar(
    "replicax_summary_writer", default=None
)
_conditions: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar(
    "replicax_summary_conditions", default=()
)


def has_default() -> bool:
    """Whether there is a writer here."""
    return _default.get() is not None


def should_record_summaries() -> bool:
    """Whether a summary would be written here.

    Returns:
        True if this thread has a writer, and no condition of `record_if` is false.

    Example:
        >>> import replicax as rx
        >>> rx.summary.should_record_summaries()
        False
    """
    return has_default() and all(c() if callable(c) else c for c in _conditions.get())


@contextlib.contextmanager
def record_if(condition: bool | Callable[[], bool]) -> Iterator[None]:
    """Records summaries of this thread only if a condition is true.

    Args:
        condition: A bool, or a function that is asked at each summary. Around a compiled step it
            is asked at each launch, not while the step is traced.

    Returns:
        A context manager.

    Example:
        >>> import replicax as rx
        >>> with rx.summary.record_if(False):
        ...     rx.summary.scalar("loss", 0.5, step=0)
    """
    token = _conditions.set((*_conditions.get(), condition))
    try:
        yield
    finally:
        _conditions.reset(token)


def create_file_writer(
    logdir: PathLike,
    max_queue: int | None = None,
    flush_millis: int | None = None,
    filename_suffix: str | None = None,
    name: str | None = None,
) -> SummaryWriter:
    """A writer of event files for TensorBoard; needs ``pip install 'replicax[tensorboard]'``.

    With many workers all of them call it, and the first one writes.

    Args:
        logdir: The folder; made when there is something to write.
        max_queue: How many values may wait to be written; 1000 if None.
        flush_millis: Milliseconds between two flushes; two minutes if None.
        filename_suffix: The end of the name of the file; ``.v2`` if None.
        name: Accepted because it is documented.

    Returns:
        The writer.

    Raises:
        ContextError: While a program is traced.
        ImportError: If tensorboardX is not installed.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> folder = tempfile.mkdtemp()
        >>> with rx.summary.create_file_writer(folder).as_default():
        ...     for step in range(3):
        ...         rx.summary.scalar("loss", 1 / (step + 1), step)
    """
    del name
    if current_frame() is not None:
        raise ContextError(
            "create_file_writer was called inside a function that is being compiled. Create the "
            "writer before, and use it there."
        )
    joined = workers.current()
    if joined is not None and joined.rank:
        return create_noop_writer()
    require_extra("tensorboardX", user="create_file_writer", extra="tensorboard")
    seconds = 120.0 if flush_millis is None else flush_millis / 1000
    suffix = ".v2" if filename_suffix is None else filename_suffix
    return SummaryWriter(pathlib.Path(logdir).absolute(), seconds, suffix, max_queue or MAX_WAITING)


def create_noop_writer() -> SummaryWriter:
    """A writer that takes nothing.

    Returns:
        The writer.

    Example:
        >>> import replicax as rx
        >>> with rx.summary.create_noop_writer().as_default(step=0):
        ...     rx.summary.scalar("loss", 0.5)
    """
    return SummaryWriter(None, 0.0, "", 1)


def flush(writer: SummaryWriter | None = None) -> None:
    """Returns when everything that was recorded is in the file.

    Args:
        writer: The writer; that of this thread if None.

    Example:
        >>> import replicax as rx
        >>> rx.summary.flush()
    """
    chosen = _default.get() if writer is None else writer
    if chosen is not None:
        chosen.flush()


def deliver(
    kind: str, tag: str, step: int | None, options: dict[str, Any], values: tuple[Any, ...]
) -> None:
    """Hands values to the writer of this thread; called outside of programs, and returns at once.

    Args:
        kind: One of `PROTOS`.
        tag: The name.
        step: The step, if it is known; else it is that of this thread, or the last of `values`.
        options: For the function in `PROTOS`.
        values: The value, and perhaps the step.
    """
    writer = _default.get()
    if writer is None or not should_record_summaries():
        return
    value, *more = values
    if more:
        step = _one_of(more[0])
    elif step is None:
        step = get_step()
    if step is None:
        notices.notify_once(
            ("summary without a step", kind, tag),
            f"the {kind} {tag!r} has no step and is not written. Pass step=, or call "
            "replicax.summary.set_step or writer.as_default(step=...).",
        )
        return
    writer._record(kind, tag, _one_of(value), step, options)


def _one_of(value: Any) -> Any:
    """The array of a value that is the same on every replica."""
    if isinstance(value, PerReplica):
        return next(iter(value.values))
    return value.read_value() if isinstance(value, Mirrored) else value


def delivery(kind: str, tag: str, step: int | None, options: dict[str, Any]) -> Any:
    """A function of values that hands them to the writer."""
    return functools.partial(deliver, kind, tag, step, options)
