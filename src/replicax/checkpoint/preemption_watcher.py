"""`PreemptionWatcher`: whether a worker was told to leave, for programs that decide by themselves.

`PreemptionCheckpointHandler` saves and leaves by itself; this only says what happened.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import signal
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from replicax.backend import workers
from replicax.checkpoint.team import current_team
from replicax.core.errors import ContextError

_POLL_SECONDS = 0.05
_SILENT_SECONDS = 5.0

_numbers = itertools.count(1)


class PreemptionWatcher:
    """Watches for SIGTERM on this worker and, by the other workers' word, on them.

    Every worker of a cluster creates one, in the same order. It has the handler of SIGTERM until
    `close`, and calls the one that was there before, so that a `PreemptionCheckpointHandler` made
    earlier still saves.

    Raises:
        ContextError: If it is not created in the main thread, where signals are handled.

    Example:
        >>> import os, signal
        >>> import replicax as rx
        >>> with rx.experimental.PreemptionWatcher() as watcher:
        ...     before = watcher.preemption_message
        ...     os.kill(os.getpid(), signal.SIGTERM)
        ...     after = watcher.preemption_message
        >>> before is None, after
        (True, 'this process was told to leave (SIGTERM)')
    """

    def __init__(self) -> None:
        """Begins to watch."""
        team, number = current_team(), next(_numbers)
        told = self._told = {}  # by rank: the message
        self._rank = team.rank
        tells: list[Callable[[], None]] = []
        for rank, name in enumerate(team.names):
            note = functools.partial(told.setdefault, rank, f"{name} was told to leave (SIGTERM)")
            if rank == team.rank:
                tells.append(note)
            if not team.is_alone:
                word = f"preempted-{number}-{rank}"
                workers.require().listen(word, note)
                if rank == team.rank:
                    tells.append(functools.partial(workers.require().say, word))
        before: Any = None

        def handle(number: int, frame: FrameType | None) -> None:
            for tell in tells:
                tell()
            if callable(before):
                before(number, frame)

        try:
            before = signal.signal(signal.SIGTERM, handle)
        except ValueError:
            raise ContextError(
                "SIGTERM can be watched from the main thread only, and this is the thread "
                f"{threading.current_thread().name!r}. Create the PreemptionWatcher in the main "
                "thread."
            ) from None
        self._close = weakref.finalize(self, _give_back, handle, before)

    @property
    def preemption_message(self) -> str | None:
        """Which workers were told to leave, as far as this one knows; None if there is none.

        Another worker's word takes up to a second.
        """
        return "; ".join(self._told[rank] for rank in sorted(self._told)) or None

    def block_until_worker_exit(self) -> None:
        """Waits until every other worker that was told to leave has gone; at once if none was."""
        while True:
            waited = {rank for rank in self._told if rank != self._rank}
            if waited <= set(workers.require().gone(_SILENT_SECONDS) if waited else ()):
                return
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """Puts the handler of SIGTERM back that was there before."""
        self._close()

    def __enter__(self) -> PreemptionWatcher:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _give_back(own: Callable[..., Any], before: Any) -> None:
    with contextlib.suppress(ValueError):  # collected in another thread
        if signal.getsignal(signal.SIGTERM) is own:  # nobody has put another one on top
            signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
