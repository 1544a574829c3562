"""The other workers of a cluster, as this process reaches them beside their arrays.

Arrays travel in collectives. Here are the small things: who is alive, whether all workers are
about to do the same, and which shapes the others have. They go through the key-value store of
JAX's coordination service as JSON.

A collective that one worker does not reach would hang the others, so what all must do alike is
compared first. The comparisons happen where a program is new or a value comes from the host,
never in the repetition of a step.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from replicax.backend import compat
from replicax.backend.mesh import ReplicaMesh
from replicax.core.errors import DeviceError, WorkerLostError, WorkersDifferError

DEFAULT_TIMEOUT_SECONDS = 10.0

COORDINATION_VARIABLE = "REPLICAX_COORDINATION_ADDRESS"
"""Names the address of a coordination service that outlives the workers, if a launcher has one."""

_MEETING_SECONDS = 300.0
"""How long workers that are alive may keep each other waiting before it counts as a hang."""

_FAILED = "a failure"
_BEAT_SECONDS = 0.5
_SILENT_SECONDS = 3.0
_SLICE_SECONDS = 1.0
_EXIT_SECONDS = 10.0
_COLLECTIVE_TIMEOUT_FLAG = "--xla_cpu_collective_timeout_seconds"


class Workers:
    """All workers of the cluster that this process has joined.

    Attributes:
        rank: The number of this worker.
        names: What messages call each worker, by rank.
        timeout_seconds: How long a worker may be silent, and a collective may wait for it.
    """

    def __init__(self, rank: int, names: Sequence[str], timeout_seconds: float) -> None:
        """Used by `join`."""
        self.rank = rank
        self.names = tuple(names)
        self.timeout_seconds = timeout_seconds
        self._numbers: collections.Counter[str] = collections.Counter()
        self._seen: dict[int, tuple[str | None, float]] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="replicax-heart", daemon=True)
        self._heart.start()

    @property
    def num_workers(self) -> int:
        """How many workers there are, this one included."""
        return len(self.names)

    # -- messages ----------------------------------------------------------------------------

    def exchange(self, what: str, message: Any, *, channel: str = "main") -> list[Any]:
        """The messages of all workers, by rank; every worker must call it.

        Args:
            what: What is being done, the same on all workers; for errors.
            message: Plain values, for JSON.
            channel: Calls on one channel follow one another; threads need channels of their own.

        Raises:
            WorkersDifferError: If a worker is about to do something else.
            WorkerLostError: If a worker has gone, or does not come.
        """
        number = self._send(channel, what, message)
        place = f"replicax/{channel}/{number}"
        client = compat.coordination_client()
        answers = [
            [what, message] if rank == self.rank else self._answer(f"{place}/{rank}", rank, what)
            for rank in range(self.num_workers)
        ]
        if number > 1:  # all have read it: they have come here since
            client.key_value_delete(f"replicax/{channel}/{number - 1}/{self.rank}")
        for rank, (other, text) in enumerate(answers):
            if other == _FAILED:
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
            self._send("main", _FAILED, f"{type(error).__name__}: {_first_line(error)}")

    def _send(self, channel: str, what: str, message: Any) -> int:
        with self._lock:
            self._numbers[channel] += 1
            number = self._numbers[channel]
        key = f"replicax/{channel}/{number}/{self.rank}"
        try:
            compat.coordination_client().key_value_set(key, json.dumps([what, message]))
        except Exception as error:
            raise self.lost(f"at {what}", error) from error
        return number

    def agree(self, what: str, message: Any, advice: str) -> None:
        """Raises unless all workers bring the same `message`.

        Raises:
            WorkersDifferError: If one brings another; the error names those that do.
        """
        answers = self.exchange(what, message)
        differing = [rank for rank, answer in enumerate(answers) if answer != answers[0]]
        if differing:
            others = ", ".join(self.names[rank] for rank in differing)
            rows = "; ".join(
                f"{self.names[rank]}: {_shown(answers[rank])}" for rank in (0, differing[0])
            )
            raise WorkersDifferError(
                f"{what} differs between workers: {others} from {self.names[0]}. {rows}. {advice}"
            )

    def _answer(self, key: str, rank: int, what: str) -> Any:
        client = compat.coordination_client()
        end = time.monotonic() + _MEETING_SECONDS
        while True:
            try:
                return json.loads(client.blocking_key_value_get(key, int(1000 * _SLICE_SECONDS)))
            except Exception as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise self.lost(f"at {what}", error) from error
                if rank in self.silent(self.timeout_seconds) or time.monotonic() > end:
                    raise self.lost(f"at {what}", error, (rank,)) from error

    # -- who is alive ------------------------------------------------------------------------

    def _beat(self) -> None:
        """Tells the others that this worker is alive, and watches their beats."""
        count = 0
        while not self._ended.wait(_BEAT_SECONDS):
            count += 1
            client = compat.coordination_client()
            if client is None:
                return
            try:
                client.key_value_set(f"replicax/beat/{self.rank}", str(count), True)
                for rank in range(self.num_workers):
                    if rank != self.rank:
                        self._look_at(client, rank)
            except Exception:  # the service is gone; whoever waits for it will say so
                continue

    def _look_at(self, client: Any, rank: int) -> None:
        try:
            beat = client.key_value_try_get(f"replicax/beat/{rank}")
        except Exception as error:
            if "NOT_FOUND" not in str(error):
                raise
            beat = None
        if rank not in self._seen or self._seen[rank][0] != beat:
            self._seen[rank] = (beat, time.monotonic())

    def silent(self, seconds: float) -> tuple[int, ...]:
        """The workers that have not been heard of for this long."""
        now = time.monotonic()
        return tuple(rank for rank, (_, at) in self._seen.items() if now - at > seconds)

    def lost(
        self, where: str, error: BaseException, waited_for: tuple[int, ...] = ()
    ) -> WorkerLostError:
        """The error to raise after an operation of all workers has failed on this one."""
        missing = waited_for or self._find_silent()
        if missing:
            names = ", ".join(self.names[rank] for rank in missing)
            plural = "have" if len(missing) > 1 else "has"
            message = (
                f"{names} {plural} gone or does not answer, noticed by {self.names[self.rank]} "
                f"{where}. Start all workers again from the last checkpoint; `replicax launch "
                "--max-restarts` does that by itself."
            )
        else:
            message = (
                f"an operation of all workers failed on {self.names[self.rank]} {where}, although "
                "every worker still answers. One of them raised an error and is about to leave, or "
                f"was busy for more than {self.timeout_seconds:g} s with something else: then "
                "raise CommunicationOptions(timeout_seconds=...)."
            )
        return WorkerLostError(f"{message} (The runtime says: {_first_line(error)})", missing)

    def _find_silent(self) -> tuple[int, ...]:
        """Who is silent now; waits as long as it takes to be sure of it."""
        end = time.monotonic() + _SILENT_SECONDS + 2 * _BEAT_SECONDS
        while time.monotonic() < end:
            missing = self.silent(_SILENT_SECONDS)
            if missing:
                return missing
            time.sleep(_BEAT_SECONDS / 2)
        return ()

    def end(self) -> None:
        """Ends the thread; the others see this worker as silent from now on."""
        self._ended.set()


_workers: Workers | None = None


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


def join(
    addresses: Sequence[str],
    rank: int,
    *,
    names: Sequence[str],
    timeout_seconds: float,
    start_seconds: float,
) -> Workers:
    """Joins the other workers; a process does it once, before JAX starts.

    Args:
        addresses: Of all workers, by rank; the coordination service is at the first one.
        rank: Which of them this process is.
        names: What messages call them.
        timeout_seconds: How long a worker may be silent, and a collective may wait for it.
        start_seconds: How long to wait for the coordination service.

    Raises:
        DeviceError: If JAX has started already.
    """
    global _workers
    require_not_started()
    limit_collectives(timeout_seconds)
    jax.config.update("jax_enable_recoverability", True)  # or JAX ends all when one has gone
    heartbeat = max(int(timeout_seconds), 1)
    service = os.environ.get(COORDINATION_VARIABLE)
    if service:
        compat.connect_to_coordination(
            service,
            len(addresses),
            rank,
            heartbeat_seconds=heartbeat,
            start_seconds=int(start_seconds),
        )
    else:
        jax.distributed.initialize(
            coordinator_address=addresses[0],
            num_processes=len(addresses),
            process_id=rank,
            cluster_detection_method="deactivate",
            initialization_timeout=int(start_seconds),
            heartbeat_timeout_seconds=heartbeat,
            coordinator_bind_address=addresses[0],
        )
    _workers = Workers(rank, names, timeout_seconds)
    atexit.register(_leave, _workers, hosts_service=rank == 0 and not service)
    _note_errors()
    return _workers


def require_not_started() -> None:
    """Raises if it is too late to join.

    Raises:
        DeviceError: If JAX has started already.
    """
    if compat.has_started():
        raise DeviceError(
            "MultiWorkerMirroredStrategy was created after JAX had started, when it cannot join "
            "other processes any more. Create it first in the program, before any array, "
            "jax.devices() or other strategy is made."
        )


def limit_collectives(timeout_seconds: float) -> None:
    """Makes collectives of the CPU backend fail when a worker does not come; before JAX starts."""
    flags = os.environ.get("XLA_FLAGS", "")
    if _COLLECTIVE_TIMEOUT_FLAG not in flags:
        seconds = max(round(timeout_seconds), 1)
        os.environ["XLA_FLAGS"] = f"{flags} {_COLLECTIVE_TIMEOUT_FLAG}={seconds}".strip()


# -- leaving -----------------------------------------------------------------------------------
# A worker that disconnects while the service is gone is ended by JAX, and so is one whose service
# disappears. So all meet before they leave, and the one with the service leaves last. A worker
# that ends with an error does not wait for the others.

_failed = False


def _note_errors() -> None:
    previous = sys.excepthook

    def hook(*args: Any) -> None:
        global _failed
        _failed = True
        previous(*args)

    sys.excepthook = hook


def _leave(workers: Workers, *, hosts_service: bool) -> None:
    client = compat.coordination_client()
    if client is None:
        return
    try:
        if _failed:
            raise WorkerLostError("this worker ends with an error")
        client.wait_at_barrier("replicax/exit", int(1000 * _EXIT_SECONDS))
        client.key_value_set(f"replicax/left/{workers.rank}", "")
        if hosts_service:
            for rank in range(1, workers.num_workers):
                client.blocking_key_value_get(f"replicax/left/{rank}", int(1000 * _EXIT_SECONDS))
            time.sleep(_BEAT_SECONDS)  # their disconnection follows
    except Exception:
        workers.end()
        compat.forget_coordination()
        return
    workers.end()


def _shown(message: Any) -> str:
    text = json.dumps(message)
    return text if len(text) < 200 else f"{text[:200]}..."


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__
