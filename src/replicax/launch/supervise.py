"""Watches the workers of one attempt until all have ended, and ends them all when one fails.

SIGTERM would not do for that: JAX catches it for its preemption service, and a worker that
waits in a collective for a dead one never looks. So a failure is followed by SIGKILL for the
process groups of the others. Workers that leave to be started again, or are asked to, get
time to save first.
"""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from replicax.launch import exit_codes
from replicax.launch.interruption import Interruption
from replicax.launch.logs import WorkerLog
from replicax.launch.outcome import Ending, Outcome, WorkerExit
from replicax.launch.place import StartedWorker

POLL_SECONDS = 0.05
CTRL_C_SECONDS = 3.0
_MAX_LAST_READS = 64  # a process outside the group may hold the pipe and write for ever


class Supervisor:
    """The workers of one attempt.

    Args:
        workers: Those that were started.
        logs: Where the output of each goes, by id.
        interruption: What asks the launcher to end.
        grace_seconds: How long workers that were asked to leave may take.
        trouble: What is wrong with a service that the workers need; empty if nothing is.

    Example:
        >>> from replicax.launch.guard import Guard
        >>> from replicax.launch.plan import WorkerPlan
        >>> from replicax.launch.spawn import WorkerProcess
        >>> with Guard() as guard:
        ...     worker = WorkerProcess(WorkerPlan(0, ("false",), {}), guard)
        ...     outcome = Supervisor(
        ...         [worker],
        ...         {0: WorkerLog(0)},
        ...         interruption=Interruption(),
        ...         grace_seconds=1.0,
        ...     ).run()
        >>> outcome.ending, outcome.code
        (<Ending.FAILED: 'failed'>, 1)
    """

    def __init__(
        self,
        workers: Sequence[StartedWorker],
        logs: Mapping[int, WorkerLog],
        *,
        interruption: Interruption,
        grace_seconds: float,
        trouble: Callable[[], str] = str,
    ) -> None:
        self._running = {worker.worker_id: worker for worker in workers}
        self._logs = logs
        self._interruption = interruption
        self._grace_seconds = grace_seconds
        self._trouble = trouble
        self._reason = ""
        self._signals_seen = 0
        self._codes: dict[int, int] = {}
        self._ending: Ending | None = None
        self._first: WorkerExit | None = None
        self._deadline: float | None = None

    def run(self) -> Outcome:
        """Returns when every worker has ended; none is left, whatever happens."""
        with selectors.DefaultSelector() as selector:
            for worker in self._running.values():
                selector.register(worker, selectors.EVENT_READ, worker)
            try:
                while self._running:
                    self._read_output(selector)
                    self._look_at_service()  # first: workers end because of it
                    self._look_for_ends(selector)
                    self._look_for_signals()
                    if self._deadline is not None and time.monotonic() >= self._deadline:
                        self._kill()
            finally:
                for worker in self._running.values():
                    worker.end()
        return self._outcome()

    # -- what happens --------------------------------------------------------------------------

    def _read_output(self, selector: selectors.BaseSelector) -> None:
        for key, _ in selector.select(POLL_SECONDS):
            worker: StartedWorker = key.data
            data = worker.read()
            if data:
                self._logs[worker.worker_id].feed(data)
            elif data == b"":  # it closed its output; its end is noticed by itself
                selector.unregister(worker)

    def _look_at_service(self) -> None:
        if self._ending is None and (trouble := self._trouble()):
            self._reason = trouble
            self._begin_end(Ending.FAILED)

    def _look_for_ends(self, selector: selectors.BaseSelector) -> None:
        ended = [(w, code) for w in self._running.values() if (code := w.poll()) is not None]
        # Those that see a peer die end an instant after it: of several, one that was killed is
        # the cause.
        for worker, code in sorted(ended, key=lambda pair: pair[1] >= 0):
            self._take_leave(worker, selector)
            self._codes[worker.worker_id] = code
            if code == 0 or self._ending is not None:
                continue
            lines = self._logs[worker.worker_id].last_lines
            self._first = WorkerExit(worker.worker_id, code, lines)
            preempted = code == exit_codes.PREEMPTED
            self._begin_end(Ending.PREEMPTED if preempted else Ending.FAILED)

    def _look_for_signals(self) -> None:
        count = self._interruption.count
        if count == self._signals_seen:
            return
        if self._signals_seen or count > 1:
            self._kill()
        elif self._ending in (None, Ending.PREEMPTED):
            self._begin_end(Ending.INTERRUPTED)
        self._signals_seen = count

    # -- what follows --------------------------------------------------------------------------

    def _begin_end(self, ending: Ending) -> None:
        self._ending = ending
        if ending is Ending.FAILED:
            self._kill()
            return
        seconds = self._grace_seconds
        if ending is Ending.INTERRUPTED:
            number = signal.SIGTERM
            if self._interruption.first == signal.SIGINT:
                number, seconds = signal.SIGINT, min(seconds, CTRL_C_SECONDS)
            for worker in self._running.values():
                worker.signal(number)
        self._deadline = time.monotonic() + seconds

    def _kill(self) -> None:
        for worker in self._running.values():
            worker.signal(signal.SIGKILL)

    def _take_leave(self, worker: StartedWorker, selector: selectors.BaseSelector) -> None:
        log = self._logs[worker.worker_id]
        worker.signal(signal.SIGKILL)  # what it started and left behind
        for _ in range(_MAX_LAST_READS):
            data = worker.read()
            if not data:
                break
            log.feed(data)
        log.close()
        del self._running[worker.worker_id]
        if worker in selector.get_map():
            selector.unregister(worker)
        worker.end()

    def _outcome(self) -> Outcome:
        codes = set(self._codes.values())
        if self._ending is None or (self._ending is Ending.INTERRUPTED and codes == {0}):
            return Outcome(Ending.DONE)
        code = 1
        if self._ending is Ending.PREEMPTED or codes <= {0, exit_codes.PREEMPTED}:
            code = exit_codes.PREEMPTED
        elif self._ending is Ending.INTERRUPTED:
            code = exit_codes.for_shell(-(self._interruption.first or signal.SIGTERM))
        elif self._first is not None:
            code = exit_codes.for_shell(self._first.returncode)
        return Outcome(self._ending, self._first, code, self._reason)
