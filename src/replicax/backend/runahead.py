"""Bounds how many programs are in flight, and orders the launches of several threads.

JAX returns from a call before the program has run, so a plain training loop runs ahead of its
devices. Three things can go wrong, and the engine launches every program here so that none does:

* **The CPU client aborts the process.** It launches a program over N devices by N tasks in a
  thread pool, and each task *waits in that pool* while its device has 32 computations in flight,
  one-device operations of the user included. The program that is running needs N threads of the
  same pool at once for its collectives. In a pool of at least 2N threads both fit; in a smaller
  one the first task that has to wait can starve the running program for ever, and XLA kills the
  process after 40 seconds. ``backend.devices`` asks for a large enough pool if it is called
  before JAX starts. In a process that started JAX without it, one program of ours is in flight
  at a time: no larger number is safe, because any number of the user's own operations may take
  up the rest of the 32.
* **Two threads launch in different orders** on different devices, and each program waits for the
  other's devices. One lock is held while a program is put on all its devices.
* **Memory grows** with every program that waits for its turn.

A program's *token* is an output that tells when it is done: a small result, or, where there is
none, an extra scalar. It is never a variable: the next step donates those, and there would be
nothing left to wait for.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from replicax.backend import cpu_client, workers
from replicax.jax_internals.arrays import is_deleted, one_device_arrays

MAX_IN_FLIGHT = 8

_Outputs = TypeVar("_Outputs")

_LATE_ERROR = (
    "This error is of a program that was launched earlier; it was only seen now, before the next "
    "program was launched. The next program has not been launched."
)


class RunAhead:
    """Launches programs so that at most `limit` of them are in flight.

    The wait comes before the launch, never after it: an error of an earlier program, or Ctrl-C,
    then surfaces while the new program has not consumed its donated inputs.

    An error of an earlier program is raised once, by the next `launch` or `wait`. Everything that
    is in flight is awaited and forgotten first, because the programs that used its outputs fail
    with it; what else failed is in the notes of the error. Where it failed because another worker
    has gone, a `WorkerLostError` is raised from it.

    Host callbacks of a program must not launch programs: they would wait for themselves.

    Attributes:
        num_failures: How often programs were found to have failed.
        chain: Whose programs `num_chained` counts; see `begin_chain`.
        num_chained: How many of the programs that were launched last each used what the one
            before it had computed: when one of them is done, those before it are.

    Args:
        limit: Programs in flight; chosen at the first launch from the devices and threads of this
            process if None.
    """

    __slots__ = (
        "_asked_limit",
        "chain",
        "lock",
        "num_chained",
        "num_failures",
        "room",
        "settles",
        "tokens",
    )

    def __init__(self, limit: int | None = None) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}.")
        self._asked_limit = limit
        self.room = limit or 0  # 0 is not chosen yet: the first launch goes the slow way
        # Reentrant, because tracing in a first call may launch again, as may a signal handler.
        self.lock = threading.RLock()
        self.tokens: collections.deque[jax.Array] = collections.deque()
        self.num_failures = 0
        self.chain: object = None
        self.num_chained = 0
        self.settles = limit is None  # until the limit is chosen

    @property
    def limit(self) -> int:
        """How many programs may be in flight; asking starts JAX if it has not started."""
        with self.lock:
            self._choose_limit()
            return self.room

    @property
    def num_in_flight(self) -> int:
        """How many programs have not been awaited; they may have finished all the same."""
        return len(self.tokens)

    def launch(self, program: Callable[..., tuple[jax.Array, _Outputs]], *args: Any) -> _Outputs:
        """Runs ``program(*args)``, which returns its token and its outputs, as soon as it may.

        The token must be an output of the same XLA program as the outputs, on all its devices
        (replicated over the mesh), and must never be donated, deleted or handed out.

        Returns:
            The outputs, which may not have been computed yet.
        """
        with self.lock:
            self.make_room()
            token, outputs = workers.translated(lambda: program(*args))
            self.add(token)
        return outputs

    def launch_and_wait(self, operation: Callable[..., _Outputs], *args: Any) -> _Outputs:
        """Runs an operation over several devices that has no token, and waits for its outputs.

        For what the engine does beside its programs and seldom: resharding, a reduction of values
        that are already there.
        """
        with self.lock:
            self.make_room()
            return workers.translated(lambda: jax.block_until_ready(operation(*args)))

    def add(self, token: jax.Array) -> None:
        """Notes that a program is in flight, of which nobody knows what it depends on."""
        self.begin_chain(None)
        self.tokens.append(token)

    def begin_chain(self, chain: object) -> None:
        """Says that the next program need not depend on those in flight.

        Args:
            chain: Stands for the launches to come, which count themselves in `num_chained` if
                each uses what the one before it has computed.
        """
        self.chain, self.num_chained = chain, 0

    def settle(self) -> None:
        """Waits for all programs if the thread pool is small, otherwise does nothing.

        To be called when the outputs of a launch are safely stored. A user's own operations over
        several devices are not launched here; in a small pool they may meet nothing in flight.
        """
        if self.settles:
            self.wait(raise_errors=False)

    def wait(self, *, raise_errors: bool = True) -> None:
        """Waits for everything in flight.

        Args:
            raise_errors: Whether an error of a program is raised here. Otherwise it stays for the
                next launch.
        """
        with self.lock:
            if raise_errors:
                self._await_down_to(0)
                return
            for token in tuple(self.tokens):
                try:
                    _await(token)
                except Exception:
                    return  # the failed token stays in the queue, so the error is not lost
            self.tokens.clear()

    def reset(self) -> None:
        """Forgets what is in flight and the chosen limit, when the JAX backend is replaced."""
        with self.lock:
            self.tokens.clear()
            self.room = self._asked_limit or 0
            self.settles = self._asked_limit is None

    def make_room(self, *, follows: bool = False) -> None:
        """Waits until one more program may be launched; to be called with `lock` held.

        Programs that do not depend on each other run at the same time on a CPU, and hide from each
        other how long the threads of a collective take to wake up: no more than one is awaited for
        them. Steps that follow each other would only wait in turn; for them the older half is
        awaited, so that most launches find room without looking.

        Args:
            follows: Whether the program uses what those before it have computed.
        """
        if not self.room:
            self._choose_limit()
        tokens = self.tokens
        if len(tokens) < self.room:
            return
        num_left = self.room // 2 if follows else self.room - 1
        if self.num_chained >= len(tokens):
            self._await_chain(len(tokens) - num_left)
        if len(tokens) > num_left:
            self._await_down_to(num_left)

    def _choose_limit(self) -> None:
        if not self.room:
            self.room = 1 if is_pool_small() else MAX_IN_FLIGHT
            self.settles = self.room == 1

    def _await_down_to(self, num_left: int) -> None:
        tokens = self.tokens
        while len(tokens) > num_left:
            oldest = tokens[0]
            try:
                _await(oldest)
            except Exception as error:
                self._drop_all(oldest, error)
                if lost := workers.lost_worker(error):
                    raise lost from error
                raise
            # Only now, so that Ctrl-C during the wait leaves the token where it was. A signal
            # handler that launched meanwhile may have taken it.
            if tokens and tokens[0] is oldest:
                tokens.popleft()

    def _await_chain(self, count: int) -> None:
        """Awaits the `count` oldest by the last of them; does nothing if that one cannot tell."""
        tokens = self.tokens
        oldest, last = tokens[0], tokens[count - 1]
        try:
            last.block_until_ready()
        except Exception:  # it was deleted, or a program failed: awaiting each will tell
            return
        if tokens and tokens[0] is oldest:  # otherwise a signal handler has launched meanwhile
            for _ in range(count):
                tokens.popleft()

    def _drop_all(self, failed: jax.Array, error: Exception) -> None:
        """Awaits and forgets all tokens after `failed` has raised `error`."""
        self.num_failures += 1
        error.add_note(_LATE_ERROR)
        failures: collections.Counter[str] = collections.Counter()
        while self.tokens:
            token = self.tokens[0]
            try:
                if token is not failed:
                    _await(token)
            except Exception as other:
                failures[f"{type(other).__name__}: {other}".splitlines()[0]] += 1
            self.tokens.popleft()
        for text, count in failures.items():
            error.add_note(f"{count} program(s) launched after it failed as well: {text}")


def _await(token: jax.Array) -> None:
    """Waits for a token, or for what a user whose result it is as well has left of it."""
    if token.is_deleted():
        return
    try:
        token.block_until_ready()
    except Exception:
        if not is_deleted(token):
            raise
        for part in one_device_arrays(token):
            if not part.is_deleted():
                part.block_until_ready()


def is_pool_small() -> bool:
    """Whether this process's CPU client has too few threads for programs in flight.

    Starts JAX if it has not started. Processes whose CPU is one device have no such limit, nor
    have programs on accelerators.
    """
    try:
        num_devices = jax.local_device_count(backend="cpu")
    except RuntimeError:  # a JAX that was told to leave the CPU platform out
        return False
    return num_devices > 1 and cpu_client.num_client_threads(num_devices) < 2 * num_devices


# The devices and their queues belong to the process, and so does the order of launches on them.
RUN_AHEAD = RunAhead()

launch = RUN_AHEAD.launch
launch_and_wait = RUN_AHEAD.launch_and_wait
settle = RUN_AHEAD.settle
wait = RUN_AHEAD.wait
