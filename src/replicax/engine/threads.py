"""Runs one Python function per replica, on persistent threads, one at a time.

Replica 0 runs until it ends or reaches a meeting, then replica 1, and so on:
the order never depends on the scheduler. A meeting takes place when every
replica has arrived; it runs on the caller's thread, and all replicas get its
result. A replica that can do without the others goes on alone if they do not come.
What is computed at a meeting is the caller's business: nothing here
knows of values, variables or strategies.
"""

from __future__ import annotations

import contextvars
import dataclasses
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from replicax.core import notices
from replicax.core.errors import ContextError, RendezvousError

Task = Callable[[], Any]
Meeting = Callable[[list[Any]], Sequence[Any]]

ALONE = object()
"""What `ReplicaThreads.meet` answers when the others do not come."""


class _Released(BaseException):
    """Ends a replica that would wait for ever. Not an Exception, so user code lets it pass."""


@dataclasses.dataclass(slots=True)
class _Arrival:
    """One replica waiting at a meeting."""

    label: str
    meeting: Meeting
    payload: Any
    where: str
    can_be_alone: bool


@dataclasses.dataclass(slots=True)
class _Ended:
    """One replica that has returned or raised."""

    result: Any = None
    error: BaseException | None = None


class _Replica:
    """One thread, and the hand-over between it and the caller."""

    def __init__(self, replica_id: int) -> None:
        self.replica_id = replica_id
        self.state: Literal["idle", "running", "waiting"] = "idle"
        self._task: Task | None = None
        self._context: contextvars.Context | None = None
        # Not semaphores, which are Python code: Ctrl-C in the middle leaves them locked for ever.
        self._go: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopped: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._status: _Arrival | _Ended | None = None
        self._answer: Any = None
        self._release = False
        self._thread: threading.Thread | None = None

    def start(self, task: Task) -> _Arrival | _Ended:
        """Runs `task` until it ends or reaches a meeting."""
        self.state = "running"  # first: Ctrl-C may come at any call, also while the thread starts
        self._release = False
        if self._thread is None:
            name = f"replicax-replica-{self.replica_id}"
            self._thread = threading.Thread(target=_serve, args=(self,), name=name, daemon=True)
            self._thread.start()
        self._task = task
        self._context = contextvars.copy_context()
        return self._continue()

    def resume(self, answer: Any) -> _Arrival | _Ended:
        """Continues after a meeting that answered this replica with `answer`."""
        self._answer = answer
        return self._continue()

    def release(self) -> None:
        """Unwinds a replica that waits at a meeting which will not take place."""
        self._release = True
        self._continue()
        self._release = False

    def abandon(self) -> None:
        """Lets a replica that cannot be stopped now end by itself at its next stop."""
        self._release = True
        self._go.put(None)  # if it waits at a meeting
        self._go.put(None)  # for its next task

    def close(self) -> None:
        """Ends the thread, once it is idle."""
        self._go.put(None)

    def _continue(self) -> _Arrival | _Ended:
        self.state = "running"
        self._go.put(None)
        self._stopped.get()
        status, self._status = self._status, None
        assert status is not None
        self.state = "waiting" if isinstance(status, _Arrival) else "idle"
        return status

    def wait_at(self, arrival: _Arrival) -> Any:
        """On the replica's thread: stops here until the meeting has taken place."""
        if self._release:  # user code went on after it was released
            raise _Released
        self._status = arrival
        self._stopped.put(None)
        self._go.get()
        if self._release:
            raise _Released
        answer, self._answer = self._answer, None
        return answer

    def perform(self) -> bool:
        """On the replica's thread: one task; False when the thread should end."""
        self._go.get()
        task, context = self._task, self._context
        self._task = self._context = None
        if task is None or context is None or self._release:
            return False
        try:
            status = _Ended(result=context.run(task))
        except BaseException as error:  # handed to the caller, whatever it is
            status = _Ended(error=error)
        del task, context
        self._status = status
        self._stopped.put(None)
        return True


def _serve(replica: _Replica) -> None:
    _current.replica = replica
    while replica.perform():
        pass


_current = threading.local()


class ReplicaThreads:
    """The threads of one group of replicas, reused by every run.

    Example:
        >>> threads = ReplicaThreads(2)
        >>> def task():
        ...     return threads.meet("sum", lambda payloads: [sum(payloads)] * 2, payload=21)
        >>> threads.run([task, task])
        [42, 42]
    """

    def __init__(self, num_replicas: int, first_id: int = 0) -> None:
        """Prepares `num_replicas` threads, of replicas from `first_id` on; the first run starts."""
        ids = range(first_id, first_id + num_replicas)
        self._replicas = [_Replica(replica_id) for replica_id in ids]
        self._busy = threading.Lock()
        self._caller: int | None = None
        weakref.finalize(self, _close, self._replicas)

    def run(self, tasks: Sequence[Task]) -> list[Any]:
        """Runs one task per replica and returns their results, in replica order.

        Raises:
            RendezvousError: If some replicas reached a meeting that others did not.
            BaseException: What a task raised, unchanged; the other replicas are released.
            ContextError: If called by one of these replicas, or at a meeting of them.
        """
        caller = threading.get_ident()
        if self.are_meeting() or getattr(_current, "replica", None) in self._replicas:
            raise ContextError(
                "these replicas are already running, and wait for the code that wants to run them "
                "again. Run them before or after it."
            )
        with self._busy:
            self._caller = caller
            try:
                self._unwind()  # only does something after a second Ctrl-C
                return self._drive(self._replicas[: len(tasks)], tasks)
            except BaseException:
                self._unwind()
                raise
            finally:
                self._caller = None

    def are_meeting(self) -> bool:
        """Whether the calling thread runs the replicas, and so holds their meetings."""
        return self._caller == threading.get_ident()

    def _drive(self, replicas: list[_Replica], tasks: Sequence[Task]) -> list[Any]:
        statuses: dict[_Replica, _Arrival | _Ended] = {}

        def stopped(replica: _Replica, status: _Arrival | _Ended) -> None:
            statuses[replica] = status
            if isinstance(status, _Ended) and status.error is not None:
                _note(status.error, replica.replica_id, _arrivals(statuses.values()))
                raise status.error

        for replica, task in zip(replicas, tasks, strict=True):
            stopped(replica, replica.start(task))
        while _arrivals(statuses.values()):
            if alone := _alone(statuses):
                for replica in alone:
                    stopped(replica, replica.resume(ALONE))
                continue
            answers = _hold_meeting(list(statuses.values()))
            statuses.clear()
            for replica, answer in zip(replicas, answers, strict=True):
                stopped(replica, replica.resume(answer))
        return [status.result for status in statuses.values() if isinstance(status, _Ended)]

    def _unwind(self) -> None:
        for index, replica in enumerate(self._replicas):
            if replica.state == "waiting":
                replica.release()
            elif replica.state == "running":  # the caller was interrupted while it ran
                replica.abandon()
                self._replicas[index] = _Replica(replica.replica_id)

    def meet(
        self, label: str, meeting: Meeting, *, payload: Any, can_be_alone: bool = False
    ) -> Any:
        """Called by a replica: waits for the others, then returns its part of the meeting.

        Args:
            label: What the replica is doing, for errors.
            meeting: Gets all payloads, in replica order, and returns one answer each.
            payload: What this replica brings.
            can_be_alone: Whether this replica gets the answer `ALONE` where another one ends or
                goes to another meeting. Without it, that is an error.
        """
        where = "{}:{}".format(*notices.user_line())
        return _current.replica.wait_at(_Arrival(label, meeting, payload, where, can_be_alone))


def _arrivals(statuses: Iterable[_Arrival | _Ended]) -> list[_Arrival]:
    return [status for status in statuses if isinstance(status, _Arrival)]


def _alone(statuses: Mapping[_Replica, _Arrival | _Ended]) -> list[_Replica]:
    """The replicas that need not wait, where not all of them are at one meeting."""
    arrivals = _arrivals(statuses.values())
    if len(arrivals) == len(statuses) and len({arrival.label for arrival in arrivals}) == 1:
        return []
    return [
        replica
        for replica, status in statuses.items()
        if isinstance(status, _Arrival) and status.can_be_alone
    ]


def _hold_meeting(statuses: Sequence[_Arrival | _Ended]) -> Sequence[Any]:
    first = next(status for status in statuses if isinstance(status, _Arrival))
    for replica_id, status in enumerate(statuses):
        if isinstance(status, _Ended):
            arrived = next(i for i, s in enumerate(statuses) if isinstance(s, _Arrival))
            raise RendezvousError(
                f"replica {arrived} called {first.label} at {first.where}, but replica "
                f"{replica_id} returned without calling it. All replicas must make the same "
                "calls in the same order."
            )
        if status.label != first.label:
            raise RendezvousError(
                f"replica 0 called {first.label} at {first.where}, but replica {replica_id} called "
                f"{status.label} at {status.where}. All replicas must make the same calls in the "
                "same order."
            )
    return first.meeting([arrival.payload for arrival in _arrivals(statuses)])


def _note(error: BaseException, replica_id: int, waiting: list[_Arrival]) -> None:
    """Says on which replica an error happened, and who was waiting for it."""
    note = f"raised on replica {replica_id}"
    if waiting:
        note += f", while another replica waited in {waiting[0].label} at {waiting[0].where}"
    error.add_note(f"{note}; every replica was released.")


def _close(replicas: list[_Replica]) -> None:
    for replica in replicas:
        replica.close()
