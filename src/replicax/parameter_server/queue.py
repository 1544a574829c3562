"""The closures that wait for a worker, and those that are being run.

Bounded: who schedules more than there is room for waits. With a bound on staleness closures are
started in their order, so many at a time as the bound allows, and committed in that order: a
closure then misses the updates of those only that had been started and not committed before it.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from typing import Any

from replicax.parameter_server.messages import Array
from replicax.parameter_server.remote_value import ClosureCancelledError, RemoteValue


@dataclasses.dataclass(slots=True, eq=False)
class ScheduledClosure:
    """One closure on its way.

    Attributes:
        number: Its number; a later one has a larger number.
        program: What to run.
        arguments: Its arguments, with one array for each worker where they differ.
        value: What gets its result.
        tries: How often it was tried.
    """

    number: int
    program: Any
    arguments: list[Any]
    value: RemoteValue = dataclasses.field(default_factory=RemoteValue)
    tries: int = 0

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
    """

    def __init__(self, size: int, max_staleness: int | None) -> None:
        self._size = size
        self._window = None if max_staleness is None else max_staleness + 1
        self._waiting: collections.deque[ScheduledClosure] = collections.deque()
        self._running: dict[int, ScheduledClosure] = {}  # in the order in which they were started
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
            self._changed.notify_all()

    def join(self) -> None:
        """Waits until nothing waits and nothing runs.

        Raises:
            BaseException: The error of a closure that failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._running)
            self._raise_error()

    def is_done(self) -> bool:
        """Whether nothing waits and nothing runs; raises as `join` does."""
        with self._changed:
            if not self._waiting and not self._running:
                self._raise_error()
                return True
            return False

    def close(self) -> None:
        """Drops what waits, and lets the workers' threads end."""
        with self._changed:
            self._is_closed = True
            self._cancel_waiting("the coordinator was closed")
            self._changed.notify_all()

    def counts(self) -> tuple[int, int]:
        """How many wait, and how many run."""
        with self._changed:
            return len(self._waiting), len(self._running)

    def running(self) -> dict[int, ScheduledClosure]:
        """What each worker runs."""
        with self._changed:
            return dict(self._running)

    def _has_error(self) -> bool:
        return self._error is not None or self._fatal is not None

    def _raise_error(self) -> None:
        """Raises the error of a closure once, when nothing runs any more."""
        if self._fatal is not None:
            raise self._fatal
        if self._error is None:
            return
        self._changed.wait_for(lambda: not self._running)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _cancel_waiting(self, reason: str) -> None:
        while self._waiting:
            closure = self._waiting.popleft()
            closure.value._fail(
                ClosureCancelledError(
                    f"closure {closure.program.spec.name!r} was not run: {reason}."
                )
            )

    # -- the workers' side -------------------------------------------------------------------

    def take(self, worker: int) -> ScheduledClosure | None:
        """The next closure for a worker; waits for one. None when the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._may_start())
            if self._is_closed:
                return None
            closure = self._waiting.popleft()
            self._running[worker] = closure
            self._changed.notify_all()
            return closure

    def _may_start(self) -> bool:
        if not self._waiting:
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
            del self._running[worker]
            self._changed.notify_all()

    def put_back(self, worker: int) -> None:
        """A worker could not run its closure: somebody else will, before those after it."""
        with self._changed:
            closure = self._running.pop(worker)
            closure.tries += 1
            place = sum(other.number < closure.number for other in self._waiting)
            self._waiting.insert(place, closure)
            self._changed.notify_all()

    def fail(self, worker: int, error: BaseException) -> None:
        """A worker's closure has failed: what waits is cancelled, and the coordinator told once."""
        with self._changed:
            closure = self._running.pop(worker)
            closure.value._fail(error)
            if self._error is None:
                self._error = error
            self._cancel_waiting(f"closure {closure.program.spec.name!r} failed before it")
            self._changed.notify_all()

    def fail_for_good(self, error: BaseException, worker: int | None = None) -> None:
        """Nothing can be run any more; `worker`, if one is given, runs nothing now."""
        with self._changed:
            self._fatal = error
            closure = None if worker is None else self._running.pop(worker, None)
            if closure is not None:
                closure.value._fail(error)
            self._cancel_waiting(str(error))
            self._changed.notify_all()
