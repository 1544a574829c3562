"""What the thread of a training loop does at each moment, added up while somebody watches it.

Whoever runs steps, hands out input or meets other workers says so here, if there is a `recorder`;
otherwise it looks at one attribute and goes on. `watching` puts a recorder here and reads it.
Knows nothing of devices, strategies or steps.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

LOOP, DISPATCH, INPUT, DEVICES, WORKERS, COMPILING = range(6)
"""What a thread can be doing. One that is doing something may enter a later one only: what an
iterator of input computes is input, and whatever a compilation needs is compilation."""

NUM_PHASES = 6

_Annotation = contextlib.AbstractContextManager[Any]


class Token(Protocol):
    """What tells that a program is done."""

    def is_ready(self) -> bool:
        """Whether it is."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """What a recorder has found so far.

    Attributes:
        seconds: Of each phase.
        num_batches: How many batches distributed datasets have handed out.
        num_examples: How many examples were in them, on all replicas.
        calls: How often the loop has called each function.
        programs: How many programs were traced for each function.
        retraces: How many of these were not the first one of their function.
    """

    seconds: tuple[float, ...]
    num_batches: int
    num_examples: int
    calls: dict[str, int]
    programs: dict[str, int]
    retraces: dict[str, int]

    def since(self, earlier: Recorded) -> Recorded:
        """What was found after `earlier`."""
        pairs = zip(self.seconds, earlier.seconds, strict=True)
        return Recorded(
            tuple(now - before for now, before in pairs),
            self.num_batches - earlier.num_batches,
            self.num_examples - earlier.num_examples,
            _since(self.calls, earlier.calls),
            _since(self.programs, earlier.programs),
            _since(self.retraces, earlier.retraces),
        )


def _since(counts: dict[str, int], earlier: dict[str, int]) -> dict[str, int]:
    found = {name: count - earlier.get(name, 0) for name, count in counts.items()}
    return {name: count for name, count in found.items() if count}


class Recorder:
    """Adds up what the thread that made it does; the calls of other threads are ignored.

    A call in the middle of another one of the same loop belongs to that.

    Args:
        annotate: Marks a call in the trace of a profiler, by the name of the function and the
            number of the call; gives None where nobody traces.
    """

    __slots__ = (
        "_annotate",
        "_annotation",
        "_calls",
        "_launched",
        "_num_batches",
        "_num_examples",
        "_phase",
        "_programs",
        "_retraces",
        "_seconds",
        "_since",
        "_thread",
    )

    def __init__(self, annotate: Callable[[str, int], _Annotation | None]) -> None:
        self._annotate = annotate
        self._annotation: _Annotation | None = None
        self._thread = threading.get_ident()
        self._seconds = [0.0] * NUM_PHASES
        self._num_batches = self._num_examples = 0
        self._calls: dict[str, int] = {}
        self._programs: collections.Counter[str] = collections.Counter()
        self._retraces: collections.Counter[str] = collections.Counter()
        self._phase = LOOP
        self._since = self._launched = time.perf_counter()

    # -- told by whoever works ---------------------------------------------------------------

    def enter(self, phase: int) -> int | None:
        """Begins a phase.

        Returns:
            For `leave`, the phase before; None if nothing has begun.
        """
        before = self._phase
        if phase <= before or threading.get_ident() != self._thread:
            return None
        now = time.perf_counter()
        # No other thread runs between these lines: Python looks for that at calls and jumps.
        self._seconds[before] += now - self._since
        self._since = now
        self._phase = phase
        return before

    def leave(self, before: int) -> None:
        """Ends what `enter` has begun."""
        now = time.perf_counter()
        self._seconds[self._phase] += now - self._since
        self._since = now
        self._phase = before

    def leave_input(self, before: int, num_examples: int | None) -> None:
        """Ends what `enter` has begun, with a batch of so many examples or with none."""
        now = time.perf_counter()
        self._seconds[INPUT] += now - self._since
        self._since = now
        self._phase = before
        if num_examples is not None:
            self._num_batches += 1
            self._num_examples += num_examples

    def begin_call(self, fn: object) -> bool:
        """Whether the loop itself calls a function here; then `end_call` must follow."""
        if self._phase or threading.get_ident() != self._thread:
            return False
        now = time.perf_counter()
        self._seconds[LOOP] += now - self._since
        self._since = now
        self._phase = DISPATCH
        name = getattr(fn, "__qualname__", None) or repr(fn)
        self._calls[name] = count = self._calls.get(name, 0) + 1
        self._annotation = self._annotate(name, count)
        if self._annotation is not None:
            self._annotation.__enter__()
        return True

    def end_call(self) -> None:
        """Ends what `begin_call` has begun."""
        if self._annotation is not None:
            self._annotation.__exit__(None, None, None)
        now = time.perf_counter()
        self._seconds[DISPATCH] += now - self._since
        self._since = now
        self._phase = LOOP

    def begin_launch(self) -> Callable[[Token], None] | None:
        """The runtime is handed a program.

        Returns:
            What to call with the token of the program when the runtime has returned; None if it
            does not matter. What is done by then has run meanwhile, as small programs do on a
            CPU: that was no dispatch, and devices would have been waited for as long.
        """
        if self._phase == COMPILING or threading.get_ident() != self._thread:
            return None
        self._launched = time.perf_counter()
        return self._end_launch

    def _end_launch(self, token: Token) -> None:
        if token.is_ready():
            seconds = time.perf_counter() - self._launched
            self._seconds[self._phase] -= seconds
            self._seconds[DEVICES] += seconds

    def note_calls(self, fn: object, count: int) -> None:
        """So many more steps are made in a call that has begun."""
        if threading.get_ident() == self._thread:
            name = getattr(fn, "__qualname__", None) or repr(fn)
            self._calls[name] = self._calls.get(name, 0) + count

    def note_program(self, name: str, *, is_again: bool) -> None:
        """A program is traced for a function; in any thread."""
        name = name.rpartition("<locals>.")[2]
        self._programs[name] += 1
        if is_again:
            self._retraces[name] += 1

    # -- read by whoever watches -------------------------------------------------------------

    def read(self) -> Recorded:
        """What was found so far, the phase in progress included; in any thread."""
        while True:
            since, phase = self._since, self._phase
            seconds = self._seconds.copy()
            if since == self._since:  # otherwise the thread has gone on meanwhile
                break
        seconds[phase] += time.perf_counter() - since
        return Recorded(
            tuple(seconds),
            self._num_batches,
            self._num_examples,
            dict(self._calls),
            dict(self._programs),
            dict(self._retraces),
        )


recorder: Recorder | None = None
"""Who is told; None while nobody watches. Read it as an attribute of this module, each time."""

_lock = threading.Lock()


def start(new: Recorder) -> bool:
    """Whether `new` is the recorder from now on: there was none."""
    global recorder
    with _lock:
        if recorder is not None:
            return False
        recorder = new
        return True


def stop() -> None:
    """Nobody is told any more."""
    global recorder
    recorder = None


@contextlib.contextmanager
def within(phase: int) -> Iterator[None]:
    """Says that what is done inside is `phase`; for what is not done in every step."""
    told = recorder
    before = None if told is None else told.enter(phase)
    try:
        yield
    finally:
        if told is not None and before is not None:
            told.leave(before)
