"""Signals to the launcher, kept until the supervisor looks."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Which signals have asked the launcher to end.

    Example:
        >>> interruption = Interruption()
        >>> interruption.count, interruption.wait(0.0)
        (0, False)
        >>> interruption.add(signal.SIGTERM)
        >>> interruption.first, interruption.wait(60.0)
        (15, True)
    """

    def __init__(self) -> None:
        self._received: list[int] = []
        # Held until the first signal. An Event has a lock inside, and a handler would wait for it
        # where it interrupts the code that holds it.
        self._quiet = threading.Lock()
        self._quiet.acquire()

    @property
    def count(self) -> int:
        """How many signals came; the second means at once."""
        return len(self._received)

    @property
    def first(self) -> int | None:
        """The first signal that came."""
        return self._received[0] if self._received else None

    def add(self, number: int) -> None:
        """Takes in one signal."""
        self._received.append(int(number))
        with contextlib.suppress(RuntimeError):  # not the first
            self._quiet.release()

    def wait(self, seconds: float) -> bool:
        """Waits, but not longer than until a signal comes; returns whether one has."""
        return bool(self._received) or self._quiet.acquire(timeout=seconds)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Takes in the signals of this process; for the main thread."""

        def handle(number: int, frame: FrameType | None) -> None:
            self.add(number)

        # Under nohup, a terminal that closes is to change nothing.
        ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
        wanted = [number for number in SIGNALS if number not in ignored]
        previous = {number: signal.signal(number, handle) for number in wanted}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
