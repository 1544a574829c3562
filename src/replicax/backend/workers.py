"""The other workers of a cluster, as this process reaches them beside their arrays.

Arrays travel in collectives. Here are the small things: who is alive, whether all workers are
about to do the same, and which shapes the others have. They go through the key-value store of
JAX's coordination service as JSON.

A collective that one worker does not reach would hang the others, so what all must do alike is
compared first. The comparisons happen where a program is new or a value comes from the host,
never in the repetition of a step; what such steps get is compared by `comparing`.
"""

from __future__ import annotations

import collections
import contextlib
import json
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from replicax.backend.mesh import ReplicaMesh
from replicax.backend.relay import Relay
from replicax.core import recording
from replicax.core.errors import (
    LostVariableError,
    ReplicaxError,
    WorkerLostError,
    WorkersDifferError,
)
from replicax.jax_internals.processes import coordination_client

_Value = TypeVar("_Value")

MEETING_SECONDS = 300.0
"""How long workers that are alive may keep each other waiting before it counts as a hang."""

_FAILURE = "a failure"
BEAT_SECONDS = 0.5
SILENT_SECONDS = 3.0
_SLICE_SECONDS = 1.0
GOODBYE_SECONDS = 2.0

# The last beat of a worker that leaves. One that left because of another is not the cause.
ENDED = "ended"
FAILED = "failed"
BEREFT = "bereft"
_LAST_BEATS = (ENDED, FAILED, BEREFT)

# A status of the runtime, and in it what carries collectives or messages between processes.
_COMMUNICATION_ERROR = re.compile(
    r"\A[A-Z_]+: .*(Gloo|NCCL|ncclComm|[Cc]oordination ?[Ss]ervice)", re.DOTALL
)


class Workers:
    """All workers of the cluster that this process has joined.

    Attributes:
        rank: The number of this worker.
        names: What messages call each worker, by rank.
        timeout_seconds: How long a worker may be silent, and a collective may wait for it.
        service_rank: Which of them has the coordination service; None for a launcher's.
        channel: Of the main thread.
    """

    def __init__(
        self,
        rank: int,
        names: Sequence[str],
        timeout_seconds: float,
        *,
        service_rank: int | None,
        relay: Relay | None = None,
    ) -> None:
        self.rank = rank
        self.names = tuple(names)
        self.timeout_seconds = timeout_seconds
        self.service_rank = service_rank
        self.channel = "main"
        self._relay = relay
        self._numbers: collections.Counter[str] = collections.Counter()
        self._seen: dict[int, tuple[str | None, float]] = {}
        self._said: set[str] = set()
        self._listeners: dict[str, Callable[[], object]] = {}
        self._looked_at = time.monotonic()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.aside = Aside()
        self._heart = threading.Thread(target=self._beat, name="replicax-heart", daemon=True)
        self._heart.start()

    @property
    def num_workers(self) -> int:
        """How many workers there are, this one included."""
        return len(self.names)

    # -- messages ----------------------------------------------------------------------------

    def exchange(self, what: str, message: Any, *, channel: str | None = None) -> list[Any]:
        """The messages of all workers, by rank; every worker must call it.

        Args:
            what: What is being done, the same on all workers; for errors.
            message: Plain values, for JSON.
            channel: Calls on one channel follow one another; threads need channels of their
                own. That of the main thread if None.

        Raises:
            WorkersDifferError: If a worker is about to do something else.
            WorkerLostError: If a worker has gone, or does not come.
        """
        channel = self.channel if channel is None else channel
        number = self._send(channel, what, message)
        place = f"replicax/{channel}/{number}"
        client = coordination_client()
        with recording.within(recording.WORKERS):
            answers = [
                [what, message]
                if rank == self.rank
                else self._answer(f"{place}/{rank}", rank, what)
                for rank in range(self.num_workers)
            ]
        if number > 1:  # all have read it: they have come here since
            before = f"replicax/{channel}/{number - 1}/{self.rank}"
            self._ask(lambda: client.key_value_delete(before), what)
        for rank, (other, text) in enumerate(answers):
            if other == _FAILURE:
                raise WorkersDifferError(
                    f"{self.names[rank]} failed, while {self.names[self.rank]} is at {what}: {text}"
                )
            if other != what:
                raise WorkersDifferError(
                    f"{self.names[self.rank]} is at {what}, but {self.names[rank]} is at {other}. "
                    "All workers must run the same program: look for code that only some of them "
                    "execute, or for variables and steps in another order."
                )
        return [message for _, message in answers]

    def tell_failure(self, error: BaseException) -> None:
        """Lets workers that meet this one next know that it does not come, and why.

        Where all of them fail alike, none of them looks.
        """
        with contextlib.suppress(WorkerLostError):  # the error itself is on its way
            self._send(self.channel, _FAILURE, f"{type(error).__name__}: {error}"[:1000])

    def _send(self, channel: str, what: str, message: Any) -> int:
        with self._lock:
            self._numbers[channel] += 1
            number = self._numbers[channel]
        key = f"replicax/{channel}/{number}/{self.rank}"
        text, client = json.dumps([what, message]), coordination_client()
        self._ask(lambda: client.key_value_set(key, text), what)
        return number

    def _ask(self, action: Callable[[], object], what: str) -> None:
        """Makes a request, in a thread: it never returns where the service does not answer.

        Raises:
            WorkerLostError: If it fails, or the service is not heard of any more.
        """
        errors: list[Exception] = []

        def act() -> None:
            try:
                action()
            except Exception as error:
                errors.append(error)

        request = threading.Thread(target=act, name="replicax-request", daemon=True)
        request.start()
        while True:
            request.join(_SLICE_SECONDS)  # a queue's `get` may miss its time when a signal comes
            if errors:
                raise self.lost(f"at {what}", errors[0]) from errors[0]
            if not request.is_alive():
                return
            if not self._is_service_heard(self.timeout_seconds):
                silence = TimeoutError("the request was not answered")
                raise self.lost(f"at {what}", silence) from silence

    def agree(self, what: str, message: Any, advice: str, *, beside: Any = None) -> list[Any]:
        """Raises unless all workers bring the same `message`.

        Returns:
            What each of them brings `beside` it, by rank.

        Raises:
            WorkersDifferError: If one brings another; the error names those that do.
        """
        rows = self.exchange(what, [message, beside])
        answers = [answer for answer, _ in rows]
        differing = [rank for rank, answer in enumerate(answers) if answer != answers[0]]
        if differing:
            others = ", ".join(self.names[rank] for rank in differing)
            shown = "; ".join(
                f"{self.names[rank]}: {_shown(answers[rank])}" for rank in (0, differing[0])
            )
            raise WorkersDifferError(
                f"{what} differs between workers: {others} from {self.names[0]}. {shown}. {advice}"
            )
        return [other for _, other in rows]

    def _answer(self, key: str, rank: int, what: str) -> Any:
        client = coordination_client()
        end = time.monotonic() + MEETING_SECONDS
        while True:
            try:
                text = client.blocking_key_value_get(key, int(1000 * _SLICE_SECONDS))
                doing, message = json.loads(text)
                return [str(doing), message]
            except Exception as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise self.lost(f"at {what}", error) from error
                if rank in self.gone(self.timeout_seconds) or time.monotonic() > end:
                    raise self.lost(f"at {what}", error, (rank,)) from error
                if not self._is_service_heard(self.timeout_seconds):
                    raise self.lost(f"at {what}", error) from error

    # -- what each of them has put up ---------------------------------------------------------

    def post(self, topic: str, message: Any) -> None:
        """Puts a message up where the others find it, in place of the last one on this topic.

        Nobody has to look at it. Not for the main thread: where the service does not answer, it
        never returns, and where the service has gone, it raises an error of JAX.
        """
        key = f"replicax/posted/{topic}/{self.rank}"
        coordination_client().key_value_set(key, json.dumps(message), True)

    def posted(self, topic: str) -> list[Any]:
        """What each worker has posted last on a topic, by rank; None for one that has not.

        As `post`, for threads of their own.
        """
        client = coordination_client()
        texts = [_stored(client, f"replicax/posted/{topic}/{i}") for i in range(self.num_workers)]
        return [None if text is None else json.loads(text) for text in texts]

    # -- words to all ------------------------------------------------------------------------

    def say(self, word: str) -> None:
        """Sends a word to all workers with the next beat; a signal handler may call it."""
        self._said.add(word)

    def listen(self, word: str, then: Callable[[], object]) -> None:
        """Calls `then` once, in a thread of its own, when a worker has said the word."""
        self._listeners[word] = then

    def _pass_words(self, client: Any) -> None:
        for word in list(self._said):
            client.key_value_set(f"replicax/word/{word}", "said", True)
            self._said.discard(word)
        for word, then in list(self._listeners.items()):
            if _stored(client, f"replicax/word/{word}") is not None:
                del self._listeners[word]
                threading.Thread(target=then, name=f"replicax-{word}", daemon=True).start()

    # -- who is alive ------------------------------------------------------------------------

    def _beat(self) -> None:
        """Tells the others that this worker is alive, and watches their beats."""
        count = 0
        while not self._ended.wait(BEAT_SECONDS):
            count += 1
            client = coordination_client()
            if client is None:
                return
            try:
                client.key_value_set(self._beat_key(self.rank), str(count), True)
                self._look_at_all(client)
                self._pass_words(client)
            except Exception:  # the service is gone; whoever waits for it will say so
                continue

    def _beat_key(self, rank: int) -> str:
        return f"replicax/beat/{rank}"

    def _look_at_all(self, client: Any) -> None:
        for rank in range(self.num_workers):
            if rank != self.rank:
                self._look_at(client, rank)
        self._looked_at = time.monotonic()

    def _look_at(self, client: Any, rank: int) -> None:
        beat = _stored(client, self._beat_key(rank))
        if rank not in self._seen or self._seen[rank][0] != beat:
            self._seen[rank] = (beat, time.monotonic())

    def _is_service_heard(self, seconds: float) -> bool:
        if self._relay is not None and self._relay.is_cut:
            return False
        return time.monotonic() - self._looked_at <= seconds

    def gone(self, seconds: float) -> tuple[int, ...]:
        """The workers that have left, or had not been heard of for this long when last looked.

        Those that left because of others are listed only if there is nobody else.
        """
        seen = list(self._seen.items())
        bereft = tuple(rank for rank, (beat, _) in seen if beat == BEREFT)
        others = tuple(
            rank
            for rank, (beat, at) in seen
            if rank not in bereft and (beat in (ENDED, FAILED) or self._looked_at - at > seconds)
        )
        return others or bereft

    def are_over(self, ranks: Sequence[int]) -> bool:
        """Whether the programs of these workers have ended well."""
        return all(self._seen.get(rank, (None, 0.0))[0] == ENDED for rank in ranks)

    def _num_left(self) -> int:
        seen = list(self._seen.values())
        return sum(
            beat in _LAST_BEATS or self._looked_at - at > self.timeout_seconds for beat, at in seen
        )

    def lost(
        self, where: str, error: BaseException, waited_for: tuple[int, ...] = ()
    ) -> WorkerLostError:
        """The error to raise after an operation of all workers has failed on this one."""
        missing = waited_for or self._find_gone()
        own = self.names[self.rank]
        if missing:
            names = ", ".join(self.names[rank] + self._how_it_left(rank) for rank in missing)
            verbs = "have gone or do not" if len(missing) > 1 else "has gone or does not"
            message = (
                f"{names} {verbs} answer, noticed by {own} {where}. Start all workers again from "
                "the last checkpoint; `replicax launch --max-restarts` does that by itself."
            )
        elif not self._is_service_heard(self._silent_seconds):
            message = (
                f"the coordination service does not answer, noticed by {own} {where}: this worker "
                "is cut off from the launcher, or the launcher has gone."
            )
        else:
            message = (
                f"an operation of all workers failed on {own} {where}, although every worker still "
                "answers. One of them was busy for more than "
                f"{self.timeout_seconds:g} s with something else, or the connection to it is lost. "
                "If it was busy, raise CommunicationOptions(timeout_seconds=...)."
            )
        return WorkerLostError(f"{message} (The runtime says: {_last_cause(error)})", missing)

    def _how_it_left(self, rank: int) -> str:
        beat, _ = self._seen.get(rank, (None, 0.0))
        how = {ENDED: " (its program ended)", FAILED: " (it ended with an error)"}
        return how.get(beat or "", "")

    @property
    def _silent_seconds(self) -> float:
        return min(SILENT_SECONDS, max(self.timeout_seconds, 2 * BEAT_SECONDS))

    def _find_gone(self) -> tuple[int, ...]:
        """Who has gone; waits as long as it takes to be sure of it."""
        end = time.monotonic() + self._silent_seconds + 2 * BEAT_SECONDS
        while True:
            if not self._is_service_heard(self._silent_seconds):  # nor is anybody else
                return () if self.service_rank is None else (self.service_rank,)
            missing = self.gone(self._silent_seconds)
            is_cause = any(self._seen[rank][0] != BEREFT for rank in missing)
            if is_cause or time.monotonic() > end:
                return missing
            time.sleep(BEAT_SECONDS / 2)

    # -- leaving -----------------------------------------------------------------------------

    def end(self, last_beat: str) -> bool:
        """Ends the thread and tells the others why; whether they could be told."""
        self._ended.set()
        if not self._is_service_heard(self._silent_seconds):
            return False
        self._heart.join(GOODBYE_SECONDS)
        client = coordination_client()
        return self.aside.within(
            GOODBYE_SECONDS,
            lambda: client.key_value_set(self._beat_key(self.rank), last_beat, True),
        )

    def await_others(self, seconds: float) -> None:
        """Returns when every other worker has left or is silent; after `seconds` anyway."""
        client = coordination_client()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._look_at_all(client)
            if self._num_left() == self.num_workers - 1:
                return
            time.sleep(BEAT_SECONDS / 5)


def _stored(client: Any, key: str) -> str | None:
    """What the key-value store has under this key; None if nothing."""
    try:
        return client.key_value_try_get(key)
    except Exception as error:
        if "NOT_FOUND" not in str(error):
            raise
        return None


_workers: Workers | None = None


def set_current(group: Workers) -> None:
    """Says which cluster this process has joined; `joining` does it, once."""
    global _workers
    _workers = group


@contextlib.contextmanager
def told_of_failures(mesh: ReplicaMesh) -> Iterator[None]:
    """Tells the other workers of the mesh when something fails in here, or they would wait."""
    try:
        yield
    except BaseException as error:
        if mesh.spans_workers and not isinstance(error, WorkerLostError | WorkersDifferError):
            require().tell_failure(error)
        raise


def current() -> Workers | None:
    """The cluster that this process has joined, or None."""
    return _workers


def require() -> Workers:
    """The cluster that this process has joined; there is one where a mesh spans workers."""
    assert _workers is not None
    return _workers


def lost_worker(error: BaseException) -> WorkerLostError | None:
    """What an error of the runtime means for this worker; waits until it is sure who has gone.

    Returns:
        An error that names the missing workers. None if this process is in no cluster, or
        `error` has nothing to do with the other workers.
    """
    if _workers is None:
        return None
    if isinstance(error, LostVariableError):  # perhaps to a program that failed for this reason
        lost = _workers.lost("in a program of all workers", error)
        return lost if lost.workers else None
    if isinstance(error, ReplicaxError):
        return None
    if not isinstance(error, (RuntimeError, ValueError)):  # JAX raises both for a collective
        return None
    if not _COMMUNICATION_ERROR.search(str(error)):
        return None
    return _workers.lost("in a program of all workers", error)


def translated(action: Callable[[], _Value]) -> _Value:
    """What `action` returns, which launches a program or waits for one.

    Raises:
        WorkerLostError: If it fails for want of another worker.
    """
    try:
        return action()
    except Exception as error:
        if lost := lost_worker(error):
            raise lost from error
        raise


class Aside:
    """A thread that does what might never return, one thing after the other.

    It starts at once, because Python 3.12 starts no thread any more when a program ends.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="replicax-goodbye", daemon=True).start()

    def within(self, seconds: float, action: Callable[[], object]) -> bool:
        """Whether `action` returns in time, without an error. It is left alone if it does not."""
        ended, returned = threading.Event(), threading.Event()

        def act() -> None:
            with contextlib.suppress(Exception):
                action()
                returned.set()
            ended.set()

        self._asked.put(act)
        ended.wait(seconds)
        return returned.is_set()

    def _work(self) -> None:
        while True:
            self._asked.get()()


def _shown(message: Any) -> str:
    text = json.dumps(message)
    return text if len(text) < 200 else f"{text[:200]}..."


def _last_cause(error: BaseException) -> str:
    text = str(error).strip()
    if not text:
        return type(error).__name__
    return text.splitlines()[0].rpartition("Error dispatching computation: ")[2][:300]
