"""How a process learns that it will be ended, and how it leaves then."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from replicax.checkpoint.leaving import Agreement
from replicax.checkpoint.team import Team
from replicax.core.errors import ContextError

WATCH_SECONDS = 1.0
"""How often ``termination_watcher_fn`` is asked."""


@dataclasses.dataclass(frozen=True, slots=True)
class TerminationConfig:
    """How a process learns that it will be ended, and how it leaves then.

    Attributes:
        termination_watcher_fn: Asked every second, in a thread of its own; returns True when
            this process will be ended. SIGTERM is watched in any case.
        exit_fn: Ends the process after the save; ``sys.exit(75)`` if None, which
            ``replicax launch`` takes for a preemption. SIGTERM is ignored from then on; if it
            returns in a process without other workers, SIGTERM does what it did before.
        grace_period: For how many seconds from the notice on the process may go on. It saves
            at once, trains on, and saves again before the time is over; with None or 0 it
            leaves after the first save.
        save_fn: Saves instead of the manager; gets the arguments of
            ``save_checkpoint_if_preempted``.

    Example:
        >>> TerminationConfig(grace_period=30).grace_period
        30
    """

    termination_watcher_fn: Callable[[], bool] | None = None
    exit_fn: Callable[[], Any] | None = None
    grace_period: float | None = None
    save_fn: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        """Checks the fields.

        Raises:
            TypeError: If a function is none.
            ValueError: If the grace period is negative.
        """
        for name in ("termination_watcher_fn", "exit_fn", "save_fn"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TypeError(f"{name} is {value!r}; expected a function or None.")
        if self.grace_period is not None and self.grace_period < 0:
            raise ValueError(
                f"grace_period is {self.grace_period}; expected seconds, 0 or more, or None."
            )


class Notice:
    """Whether the workers were told to leave, as all of them see it at the same step.

    It has the handler of SIGTERM until `close`.

    Args:
        team: The workers.
        watcher: As ``TerminationConfig.termination_watcher_fn``.

    Raises:
        ContextError: If a signal cannot be handled, because this is not the main thread.
    """

    def __init__(self, team: Team, watcher: Callable[[], bool] | None) -> None:
        while _left:
            _left.pop()()
        told = self._told = threading.Event()
        ended = threading.Event()
        self._agreement = None if team.is_alone else Agreement()
        tell = told.set if self._agreement is None else self._agreement.tell
        restore: Callable[[], Any] = ended.set
        is_told = False

        def handle(number: int, frame: FrameType | None) -> None:
            nonlocal is_told
            if not is_told:  # to tell takes locks, and a second SIGTERM may interrupt it
                is_told = True
                tell()

        try:
            before = signal.signal(signal.SIGTERM, handle)
        except ValueError:
            if watcher is None:
                raise ContextError(
                    "SIGTERM can be watched from the main thread only, and this is the thread "
                    f"{threading.current_thread().name!r}. Create the handler in the main "
                    "thread, or give TerminationConfig a termination_watcher_fn."
                ) from None
        else:
            restore = lambda: (ended.set(), _reset_handler(before))  # noqa: E731
        self._close = weakref.finalize(self, restore)
        if watcher is not None:
            threading.Thread(
                target=_watch, args=(watcher, tell, ended), name="replicax-watcher", daemon=True
            ).start()

    def is_due(self, check: int) -> bool:
        """Whether this is the moment to save; at the same `check` on every worker.

        Args:
            check: How many checks there were before, the same on every worker.
        """
        if self._agreement is None:
            return self._told.is_set()
        return self._agreement.is_due(check)

    def close(self) -> None:
        """Puts the handler of SIGTERM back that was there before."""
        self._close()

    def ignore(self) -> None:
        """Ignores SIGTERM from now on, because the process ends: told twice, it ends as it would.

        A handler in Python would not do: Python drops it before the process has ended. A new
        notice gives SIGTERM back, for then the process has not ended after all.
        """
        if (kept := self._close.detach()) is not None:
            _left.append(kept[1])
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


_left: list[Callable[[], Any]] = []
"""What gives SIGTERM back in a process that was about to end."""


def _reset_handler(before: Any) -> None:
    with contextlib.suppress(ValueError):  # collected in another thread
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _watch(watcher: Callable[[], bool], tell: Callable[[], None], ended: threading.Event) -> None:
    while not watcher():
        if ended.wait(WATCH_SECONDS):
            return
    tell()
