"""Reads ahead of the consumer in a background thread, where that pays.

The thread knows what it shares with the consumer, never the consumer itself, so
that dropping the iterator ends the thread. What it reads is bounded, and an
error in it is raised where the batch would have been taken.
"""

from __future__ import annotations

import abc
import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from replicax.input import steps
from replicax.input.at_exit import close_at_exit
from replicax.input.steps import HostStep
from replicax.jax_internals.traces import capture_thread_state

THREAD_NAME = "replicax-read-ahead"

NUM_MEASURED = 3
WORTH_SECONDS = 0.0005
"""Handing a batch from thread to thread takes up to a tenth of this."""

_JOIN_SECONDS = 5.0

_END = ("end", None)

Place = Callable[[HostStep], Any]


def is_worth_a_thread(seconds: Sequence[float]) -> bool:
    """Whether a source that took this long for each of its batches should be read ahead.

    The least of them counts: on a busy machine any batch may take long.

    Example:
        >>> is_worth_a_thread([0.02, 0.03, 0.02]), is_worth_a_thread([0.00001, 0.02, 0.00001])
        (True, False)
    """
    return min(seconds) >= WORTH_SECONDS


def prepared(items: Iterator[HostStep], place: Place, *, buffer_size: int) -> Preparing:
    """The placed values of `items`, read ahead as `buffer_size` says.

    Args:
        items: The steps of one pass.
        place: Puts a step on the devices.
        buffer_size: How many values are made ready in advance: 0 none, 2 and more that
            many, 1 at most one and only if the source turns out to be slow.
    """
    if buffer_size > 1:
        return Prefetching(items, place, buffer_size)
    return InTurn(items, place, may_change=buffer_size == 1)


class Preparing(Iterator[Any]):
    """An iterator of placed values that can be closed."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes what is read; the end of the iteration."""


class InTurn(Preparing):
    """Reads when it is asked, and measures whether it should rather read ahead."""

    def __init__(self, items: Iterator[HostStep], place: Place, *, may_change: bool) -> None:
        self._items = items
        self._place = place
        self._seconds: list[float] | None = [] if may_change else None
        self._ahead: Prefetching | None = None
        close_at_exit(self)

    def __next__(self) -> Any:
        if self._ahead is not None:
            return next(self._ahead)
        if self._seconds is None:
            return self._place(next(self._items))
        begin = time.perf_counter()
        step = next(self._items)
        self._seconds.append(time.perf_counter() - begin)
        if len(self._seconds) > NUM_MEASURED:  # the first one also opened the source
            if is_worth_a_thread(self._seconds[1:]):
                self._ahead = Prefetching(self._items, self._place, 1)
            self._seconds = None
        return self._place(step)

    def close(self) -> None:
        """Closes the source, or the thread that reads it."""
        if self._ahead is not None:
            self._ahead.close()
        else:
            steps.close(self._items)


class _Shared:
    """What the consumer and the reading thread both hold.

    Nothing but two queues, which are not Python code: Ctrl-C, or a finalizer, in the middle
    of a condition's methods could leave its lock held for ever.
    """

    def __init__(self, depth: int) -> None:
        self._ready: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(depth):
            self._room.put(None)
        self._last: tuple[str, Any] | None = None
        self._is_closed = False

    def close(self) -> None:
        """Lets the thread end after the batch it is reading."""
        self._is_closed = True
        self._room.put(None)  # wakes the thread
        with contextlib.suppress(queue.Empty):
            while True:
                self._ready.get_nowait()
        self._ready.put(_END)  # wakes whoever waits for a value
        # The traceback of an error holds the iterator, whose end the finalizer waits for.
        self._last = None

    def wait_for_room(self) -> bool:
        """Waits until another batch is wanted; False if none ever will be."""
        self._room.get()
        return not self._is_closed

    def put(self, kind: str, item: Any) -> None:
        """Makes a value, an error or the end ready."""
        if not self._is_closed:
            self._ready.put((kind, item))

    def take(self) -> tuple[str, Any]:
        """Waits for what comes next; an error or the end comes again and again."""
        if self._is_closed:
            return _END
        taken = self._last
        if taken is None:
            taken = self._ready.get()
            if taken[0] == "value":
                self._room.put(None)
            else:
                self._last = taken
        return taken


class Prefetching(Preparing):
    """Reads and places in a thread, never more than `depth` values ahead."""

    def __init__(self, items: Iterator[HostStep], place: Place, depth: int) -> None:
        self._shared = _Shared(depth)
        self._reader = _Reader(items, place, self._shared)
        weakref.finalize(self, self._shared.close).atexit = False
        close_at_exit(self._reader)
        try:
            self._reader.start()
        except BaseException:  # Ctrl-C, before or after the thread has begun
            self._shared.close()
            raise

    def __next__(self) -> Any:
        kind, item = self._shared.take()
        if kind == "value":
            return item
        if kind == "error":
            raise item
        raise StopIteration

    def close(self) -> None:
        """Ends the thread, after the batch that it is reading."""
        self._reader.close()


class _Reader(threading.Thread):
    """The thread. It holds what it shares with the consumer, and no iterator of a user."""

    def __init__(self, items: Iterator[HostStep], place: Place, shared: _Shared) -> None:
        super().__init__(name=THREAD_NAME, daemon=True)
        self._work = (items, place)
        self._shared = shared
        self._surroundings = capture_thread_state()

    def run(self) -> None:
        items, place = self._work
        del self._work
        try:
            with self._surroundings(), steps.opened(items):
                while self._shared.wait_for_room():
                    step = next(items, None)
                    if step is None:
                        break
                    self._shared.put("value", place(step))
                    del step  # or it would live until the next one has been read
        except BaseException as error:
            self._shared.put("error", error)
        else:
            self._shared.put(*_END)

    def close(self) -> None:
        self._shared.close()
        if self.is_alive() and self is not threading.current_thread():
            self.join(_JOIN_SECONDS)
