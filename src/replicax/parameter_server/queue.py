"""The closures that wait for a worker, and those that are being run.

Bounded: who schedules more than there is room for waits. With a bound on staleness closures are
started in their order, so many at a time as the bound allows, and committed in that order: a
closure then misses the updates of those only that had been started and not committed before it.

Nobody waits for ever. While no worker is there, or servers are being rolled back, a clock runs;
when it is over, what waits gets an error.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

from replicax.parameter_server.messages import Array
from replicax.parameter_server.remote_value import ClosureCancelledError, RemoteValue
from replicax.parameter_server.transport import ServerGoneError, WorkerGoneError


@dataclasses.dataclass(slots=True, eq=False)
class ScheduledClosure:
    """One closure on its way.

    Attributes:
        number: Its number; a later one has a larger number.
        program: What to run.
        arguments: Its arguments, with one array for each worker where they differ.
        value: What gets its result.
        tries: How often it was tried.
        is_replay: Whether its updates had been applied, and were rolled back.
    """

    number: int
    program: Any
    arguments: list[Any]
    value: RemoteValue = dataclasses.field(default_factory=RemoteValue)
    tries: int = 0
    is_replay: bool = False

    def arguments_of(self, worker: int) -> tuple[Array, ...]:
        """Its arguments for one worker."""
        return tuple(
            argument.values[worker] if isinstance(argument, EachWorker) else argument
            for argument in self.arguments
        )


@dataclasses.dataclass(frozen=True, slots=True)
class EachWorker:
    """An argument that is another one on each worker."""

    values: tuple[Array, ...]


class ClosureQueue:
    """What one coordinator has scheduled.

    Args:
        size: How many closures may wait.
        max_staleness: The largest staleness of a closure; None for no bound.
        num_workers: How many workers there are.
        patience: How many seconds closures wait for the first worker to be there again, and for a
            lost server.
    """

    def __init__(
        self, size: int, max_staleness: int | None, *, num_workers: int = 1, patience: float = 300.0
    ) -> None:
        self._size = size
        self._window = None if max_staleness is None else max_staleness + 1
        self._num_workers = num_workers
        self._patience = patience
        self._waiting: collections.deque[ScheduledClosure] = collections.deque()
        self._running: dict[int, ScheduledClosure] = {}  # in the order in which they were started
        self._away: dict[int, str] = {}  # the workers that are not there, with the reason
        self._no_worker: threading.Timer | None = None
        self._held: ServerGoneError | None = None
        self._no_server: threading.Timer | None = None
        self._num_replays = 0
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._fatal: BaseException | None = None
        self._is_closed = False
        self.scheduled = 0

    # -- the coordinator's side --------------------------------------------------------------

    def put(self, closure: ScheduledClosure) -> None:
        """Adds a closure, when there is room.

        Raises:
            BaseException: The error of a closure that failed before; the closure is not added.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._waiting) < self._size or self._has_error() or self._is_closed
            )
            self._raise_error()
            if self._is_closed:
                raise ClosureCancelledError("the coordinator is closed, and schedules no more.")
            self._waiting.append(closure)
            self.scheduled += 1
            self._mind_workers()
            self._changed.notify_all()

    def join(self) -> None:
        """Waits until nothing waits and nothing runs.

        Raises:
            BaseException: The error of a closure that failed.
        """
        with self._changed:
            self._changed.wait_for(self._is_idle)
            self._raise_error()

    def is_done(self) -> bool:
        """Whether nothing waits and nothing runs; raises as `join` does."""
        with self._changed:
            if self._is_idle():
                self._raise_error()
                return True
            return False

    def wait_settled(self) -> None:
        """Waits until servers have again all that was applied once, after they were rolled back.

        Raises:
            BaseException: If that cannot be any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_over() or self._is_settled())
            if not self._is_settled():
                self._raise_fatal()
                raise ClosureCancelledError(
                    "the coordinator was closed while its servers were being rolled back."
                )

    def is_settled(self) -> bool:
        """Whether servers have all that was applied once."""
        with self._changed:
            return self._is_settled()

    def is_over(self) -> bool:
        """Whether nothing will be run any more."""
        with self._changed:
            return self._is_over()

    def close(self) -> None:
        """Drops what waits, and lets the workers' threads end."""
        with self._changed:
            self._is_closed = True
            self._cancel_waiting("the coordinator was closed", with_replays=True)
            self._stop_clocks()
            self._changed.notify_all()

    def counts(self) -> tuple[int, int]:
        """How many wait, and how many run."""
        with self._changed:
            return len(self._waiting), len(self._running)

    def _is_idle(self) -> bool:
        if self._running or self._waiting:
            return False
        return self._held is None or self._is_over()

    def _is_settled(self) -> bool:
        return self._held is None and not self._num_replays and self._fatal is None

    def _is_over(self) -> bool:
        return self._is_closed or self._fatal is not None

    def _has_error(self) -> bool:
        return self._error is not None or self._fatal is not None

    def _raise_fatal(self) -> None:
        if self._fatal is not None:
            raise self._fatal

    def _raise_error(self) -> None:
        """Raises the error of a closure once, when nothing runs any more."""
        self._raise_fatal()
        if self._error is None:
            return
        self._changed.wait_for(self._is_idle)  # of what waits only replays are left
        self._raise_fatal()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _cancel_waiting(self, reason: str, *, with_replays: bool = False) -> None:
        """Drops what waits; what had been applied before must be applied again, so it stays."""
        waiting, self._waiting = self._waiting, collections.deque()
        for closure in waiting:
            if closure.is_replay and not with_replays:
                self._waiting.append(closure)
                continue
            self._forget_replay(closure)
            name = closure.program.spec.name
            closure.value._fail(ClosureCancelledError(f"closure {name!r} was not run: {reason}."))

    def _forget_replay(self, closure: ScheduledClosure) -> None:
        self._num_replays -= closure.is_replay
        closure.is_replay = False

    # -- workers and servers that come and go ------------------------------------------------

    def worker_left(self, worker: int, reason: str) -> None:
        """A worker takes no closures, until it is there again."""
        with self._changed:
            self._away[worker] = reason
            self._mind_workers()

    def worker_came(self, worker: int) -> None:
        """A worker is there again."""
        with self._changed:
            self._away.pop(worker, None)
            if self._no_worker is not None:
                self._no_worker.cancel()
                self._no_worker = None
            self._changed.notify_all()

    def _mind_workers(self) -> None:
        """Starts the clock if closures wait, and there is nobody to run them."""
        is_needed = self._waiting and len(self._away) == self._num_workers
        if not is_needed or self._no_worker is not None or self._is_over():
            return
        self._no_worker = self._clock(self._give_up_workers)

    def _clock(self, action: Any) -> threading.Timer:
        timer = threading.Timer(self._patience, lambda: action(timer))
        timer.daemon = True
        timer.start()
        return timer

    def _give_up_workers(self, timer: threading.Timer) -> None:
        with self._changed:
            if self._no_worker is not timer:  # somebody came
                return
            self._no_worker = None
            reasons = "; ".join(f"worker {i}: {self._away[i]}" for i in sorted(self._away))
            error = WorkerGoneError(
                f"no worker has been there for {self._patience:g} s, and {len(self._waiting)} "
                f"closures wait ({reasons}). Begin again where there is room for workers, or give "
                "ClusterCoordinator a larger restart_timeout.",
                min(self._away),
            )
            if self._num_replays:
                self._end(error)
            else:
                self._error = self._error or error
                self._cancel_waiting("no worker was there")
            self._changed.notify_all()

    def hold(self, error: ServerGoneError) -> None:
        """Starts no closures until `run_again`; `error` is raised if that does not come in time."""
        with self._changed:
            if self._held is None and not self._is_over():
                self._held = error
                self._no_server = self._clock(self._give_up_server)

    def _give_up_server(self, timer: threading.Timer) -> None:
        with self._changed:
            if self._no_server is not timer or self._held is None:
                return
            held = self._held
            self._end(
                ServerGoneError(
                    f"{str(held).rstrip('.')}, and {self._patience:g} s later there is none in its "
                    "place. Begin again from a checkpoint where there is room for servers, or give "
                    "ClusterCoordinator a larger restart_timeout.",
                    held.index,
                )
            )
            self._changed.notify_all()

    def run_again(self, closures: Sequence[ScheduledClosure]) -> None:
        """Servers have been rolled back: these go on before what waits, and nothing is held."""
        with self._changed:
            for closure in closures:
                closure.tries += 1
                closure.is_replay = True
                self._num_replays += 1
                self._insert(closure)
            self._held = None
            if self._no_server is not None:
                self._no_server.cancel()
                self._no_server = None
            if self._is_over():
                self._cancel_waiting("the coordinator was closed", with_replays=True)
            self._mind_workers()
            self._changed.notify_all()

    def _stop_clocks(self) -> None:
        for timer in (self._no_worker, self._no_server):
            if timer is not None:
                timer.cancel()
        self._no_worker = self._no_server = None

    # -- the workers' side -------------------------------------------------------------------

    def take(self, worker: int) -> ScheduledClosure | None:
        """The next closure for a worker; waits for one. None when the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._may_start(worker))
            if self._is_closed:
                return None
            closure = self._waiting.popleft()
            self._running[worker] = closure
            self._changed.notify_all()
            return closure

    def _may_start(self, worker: int) -> bool:
        if not self._waiting or self._held is not None or worker in self._away:
            return False
        return self._window is None or len(self._running) < self._window

    def wait_turn(self, worker: int) -> bool:
        """Waits until a closure may be committed.

        Returns:
            True; False if an older closure has to be run again first, and nobody else may do it.
        """
        if self._window is None:
            return True
        with self._changed:
            own = self._running[worker].number

            def is_decided() -> bool:
                return self._is_oldest(own) or self._is_overtaken(own)

            self._changed.wait_for(is_decided)
            return self._is_oldest(own)

    def _is_oldest(self, number: int) -> bool:
        others = [closure.number for closure in (*self._running.values(), *self._waiting)]
        return min(others) >= number

    def _is_overtaken(self, number: int) -> bool:
        return bool(self._waiting) and self._waiting[0].number < number

    def done(self, worker: int) -> None:
        """A worker has run its closure."""
        with self._changed:
            self._forget_replay(self._running.pop(worker))
            self._changed.notify_all()

    def put_back(self, worker: int) -> None:
        """A worker could not run its closure: somebody else will, before those after it."""
        with self._changed:
            closure = self._running.pop(worker)
            closure.tries += 1
            self._insert(closure)
            if self._fatal is not None:
                self._cancel_waiting(str(self._fatal), with_replays=True)
            elif self._is_closed:
                self._cancel_waiting("the coordinator was closed", with_replays=True)
            elif self._error is not None:
                self._cancel_waiting("another closure failed meanwhile")
            self._mind_workers()
            self._changed.notify_all()

    def _insert(self, closure: ScheduledClosure) -> None:
        place = sum(other.number < closure.number for other in self._waiting)
        self._waiting.insert(place, closure)

    def fail(self, worker: int, error: BaseException) -> None:
        """A worker's closure has failed: what waits is cancelled, and the coordinator told once."""
        with self._changed:
            closure = self._running.pop(worker)
            name = closure.program.spec.name
            if closure.is_replay:
                self._forget_replay(closure)
                error.add_note(
                    f"Closure {name!r} had been applied, was rolled back when a server was lost, "
                    "and failed when it was run again: its updates are missing. Begin again from a "
                    "checkpoint."
                )
                self._end(error)
            elif self._error is None:
                self._error = error
            closure.value._fail(error)
            self._cancel_waiting(f"closure {name!r} failed before it")
            self._changed.notify_all()

    def fail_for_good(self, error: BaseException, worker: int | None = None) -> None:
        """Nothing can be run any more; `worker`, if one is given, runs nothing now."""
        with self._changed:
            closure = None if worker is None else self._running.pop(worker, None)
            if closure is not None:
                self._forget_replay(closure)
                closure.value._fail(error)
            self._end(error)
            self._changed.notify_all()

    def _end(self, error: BaseException) -> None:
        if self._fatal is None:
            self._fatal = error
        self._stop_clocks()
        self._cancel_waiting(str(error), with_replays=True)
