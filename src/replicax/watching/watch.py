"""`watch`: says what a training loop spends its time on, while it runs.

The thread of the loop only adds up seconds (`core.recording`). A thread of the watch looks at the
sums once a second, draws them, writes summaries, and puts up what the other workers may want to
know. So nothing here can hold up a step, or make one fail.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import os
import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import jax
import numpy as np

from replicax.backend import workers
from replicax.core import recording
from replicax.core.errors import ContextError
from replicax.core.recording import Recorded, Recorder
from replicax.engine.contexts import stack
from replicax.engine.trace.frame import current_frame
from replicax.jax_internals.waits import waits_seen
from replicax.strategies.base import Strategy
from replicax.summary.writer import SummaryWriter
from replicax.watching.memory import memory_in_use
from replicax.watching.pace import WorkerPace
from replicax.watching.report import WatchReport, made, num_steps, own_and_waiting
from replicax.watching.view import LiveView

PathLike = str | os.PathLike[str]

RECENT_SECONDS = 10.0
"""What the live view calls now."""

FAREWELL_SECONDS = 2.0
"""How long the chief waits at the end for the last figures of the others."""

_JOIN_SECONDS = 5.0  # where the service of a cluster has gone, the thread does not end

_TOPIC = "watch"
_POLL_SECONDS = 0.05

_numbers = itertools.count(1)
"""Of the watches of a program, which all its workers open in the same order."""


def watch(
    strategy: Strategy,
    *,
    writer: SummaryWriter | None = None,
    file: PathLike | None = None,
    live: bool = True,
    examples_per_step: int | None = None,
    refresh_seconds: float = 1.0,
) -> LoopWatch:
    """Shows what a training loop spends its time on; put ``with`` it around the loop.

    The loop stays as it is: a plain one, ``fit`` of Keras, compiled or eager. The chief shows the
    figures in the terminal while the loop runs. Where the output is no terminal, it prints one line
    of JSON at the end. With several workers each of them opens the watch.

    Args:
        strategy: What the loop trains with.
        writer: Gets the figures for TensorBoard, once for each `refresh_seconds`.
        file: Gets the line of JSON, after those that it has.
        live: False for no view in a terminal; the line of JSON is printed there instead.
        examples_per_step: The global batch size, for a loop whose batches are not of a distributed
            dataset.
        refresh_seconds: How often the figures are looked at.

    Returns:
        A context manager, which gives the `LoopWatch`, with its `report()`.

    Raises:
        TypeError: If `strategy` or `writer` is none.
        ValueError: If a number is not positive.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> step = rx.function(lambda x: x.sum())
        >>> batch = strategy.distribute_batch([1.0, 2.0])
        >>> with rx.watch(strategy, file="/dev/null", examples_per_step=2) as watch:
        ...     for _ in range(5):
        ...         result = strategy.run(step, args=(batch,))
        >>> watch.report().steps, watch.report().programs
        (5, {'<lambda>': 1})
    """
    if not isinstance(strategy, Strategy):
        raise TypeError(f"watch needs a strategy; got {strategy!r}. Pass the one of the loop.")
    if writer is not None and not isinstance(writer, SummaryWriter):
        raise TypeError(
            f"writer of watch is {writer!r}; expected what rx.summary.create_file_writer returns."
        )
    if examples_per_step is not None and not examples_per_step > 0:
        raise ValueError(f"examples_per_step is {examples_per_step}; expected 1 or more.")
    if not refresh_seconds > 0:
        raise ValueError(f"refresh_seconds is {refresh_seconds}; expected more than 0.")
    return LoopWatch(
        strategy,
        writer=writer,
        file=file,
        live=live,
        examples_per_step=examples_per_step,
        refresh_seconds=refresh_seconds,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Look:
    """What was found at one moment; `steps` are those since the watch was opened."""

    recorded: Recorded
    steps: int

    def since(self, earlier: _Look) -> _Look:
        return _Look(self.recorded.since(earlier.recorded), self.steps - earlier.steps)

    def as_message(self) -> list[float]:
        """What other workers need to know: steps, and seconds of its own and of waiting."""
        return [self.steps, *own_and_waiting(self.recorded)]


class LoopWatch:
    """What `watch` opens around a loop. It is opened once, and by one loop of a process at a time.

    It sees what the thread does that opens it.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with rx.watch(strategy, file="/dev/null") as watch:
        ...     watch.report().steps
        0
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        writer: SummaryWriter | None,
        file: PathLike | None,
        live: bool,
        examples_per_step: int | None,
        refresh_seconds: float,
    ) -> None:
        self._strategy = strategy
        self._writer = writer
        self._file = file
        self._live = live
        self._examples_per_step = examples_per_step
        self._refresh_seconds = refresh_seconds
        self._recorder: Recorder | None = None
        self._number = 0
        self._group = workers.current() if strategy.extended.mesh.spans_workers else None
        self._applied_before = 0
        self._messages: list[Any] = []  # of the other workers; on the chief
        num_looks = max(2, round(RECENT_SECONDS / refresh_seconds) + 1)
        self._looks: collections.deque[_Look] = collections.deque(maxlen=num_looks)
        self._last: _Look | None = None
        self._report_at_end: WatchReport | None = None
        self._ended_by: str | None = None
        self._view: LiveView | None = None
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = contextlib.ExitStack()

    def __repr__(self) -> str:
        state = "not opened" if self._recorder is None else "closed" if self._last else "open"
        return f"<LoopWatch of {self._strategy!r}, {state}>"

    def report(self) -> WatchReport:
        """The figures since the watch was opened; after its end, those of the end.

        Returns:
            The report.

        Raises:
            ContextError: If it was not opened.
        """
        if self._report_at_end is not None:
            return self._report_at_end
        if self._recorder is None:
            raise ContextError(
                "the watch has not been opened, so it has no report. Write `with "
                "rx.watch(strategy) as watch:` around the loop."
            )
        return self._report(self._look(), "whole")

    # -- opening and closing -------------------------------------------------------------------

    def __enter__(self) -> LoopWatch:
        if current_frame() is not None:
            raise ContextError(
                "rx.watch was opened inside a function that is being compiled. Open it around the "
                "loop that calls the function."
            )
        stack.require_outside_run(self._strategy, "rx.watch")
        if self._recorder is not None:
            raise ContextError("this watch has been opened before. Make another: rx.watch(...).")
        recorder = Recorder(_annotation)
        if not recording.start(recorder):
            raise ContextError(
                "a watch is open already, and a process can watch one loop at a time. Leave out "
                "the inner one, or close the first one before."
            )
        self._closing.callback(recording.stop)
        try:
            self._open(recorder)
        except BaseException:
            self._closing.close()
            raise
        return self

    def _open(self, recorder: Recorder) -> None:
        self._number = next(_numbers)
        self._applied_before = self._num_applied() or 0
        enter = functools.partial(recorder.enter, recording.DEVICES)
        self._closing.enter_context(waits_seen(enter, recorder.leave))
        if self._live and self._strategy.is_chief and sys.stdout and sys.stdout.isatty():
            self._view = self._closing.enter_context(LiveView())
        self._recorder = recorder
        self._looks.append(self._look())
        self._thread = threading.Thread(target=self._go_on, name="replicax-watch", daemon=True)
        self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended_by = None if kind is None else kind.__name__
        with self._closing:  # Ctrl-C may come meanwhile
            self._last = self._look()
            self._is_over.set()
            assert self._thread is not None
            self._thread.join(_JOIN_SECONDS if kind is None else 1.0)
            self._report_at_end = self._report(self._last, "whole")
        if self._strategy.is_chief:
            with contextlib.suppress(*([] if kind is None else [OSError])):
                self._write_line(self._report_at_end.to_json())

    def _write_line(self, line: str) -> None:
        if self._file is not None:
            with open(self._file, "a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        elif self._view is None:
            print(line, flush=True)

    # -- looking -------------------------------------------------------------------------------

    def _look(self) -> _Look:
        assert self._recorder is not None
        recorded, applied = self._recorder.read(), self._num_applied()
        steps = num_steps(recorded) if applied is None else applied - self._applied_before
        return _Look(recorded, steps)

    def _num_applied(self) -> int | None:
        """How many closures workers have run for parameter servers; None where there are none."""
        coordinator = getattr(self._strategy.extended, "coordinator", None)
        return None if coordinator is None else coordinator.stats().applied

    def _report(self, look: _Look, period: str) -> WatchReport:
        """The figures of the "whole" time or of the "recent" one."""
        examples = look.recorded.num_examples or None
        if self._examples_per_step is not None:
            examples = look.steps * self._examples_per_step
        return made(
            repr(self._strategy).strip("<>"),
            look.recorded,
            memory_in_use(),
            self._paces(look, period),
            steps=look.steps,
            examples=examples,
            ended_by=self._ended_by,
        )

    # -- the thread ------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Looks again and again. None of it may disturb the loop: what fails is left out."""
        while not self._is_over.wait(self._refresh_seconds):
            self._tell(self._look(), is_last=False)
        assert self._last is not None
        self._tell(self._last, is_last=True)

    def _tell(self, look: _Look, *, is_last: bool) -> None:
        recent = look.since(self._looks[0])
        self._looks.append(look)
        with contextlib.suppress(Exception):
            self._exchange(look, recent, is_last=is_last)
        with contextlib.suppress(Exception):
            now = self._report(recent, "recent")
            if self._writer is not None:
                for name, value in _scalars(now).items():
                    value = np.float32(value)
                    self._writer._record("scalar", f"watch/{name}", value, look.steps, {})
            if self._view is not None:
                self._view.draw(now, self._report(look, "whole"))

    # -- the other workers -----------------------------------------------------------------------

    def _exchange(self, look: _Look, recent: _Look, *, is_last: bool) -> None:
        """Puts up what the chief wants to know; the chief looks at what the others have put up."""
        if self._group is None:
            return
        message = {
            "number": self._number,
            "whole": look.as_message(),
            "recent": recent.as_message(),
            "is_last": is_last,
        }
        self._group.post(_TOPIC, message)
        if not self._strategy.is_chief:
            return
        end = time.monotonic() + FAREWELL_SECONDS
        while True:
            posted = self._group.posted(_TOPIC)
            self._messages = posted
            has_all = all(self._is_of(one) and one["is_last"] for one in posted)
            is_late = time.monotonic() > end or self._ended_by is not None
            if not is_last or has_all or is_late:
                return
            time.sleep(_POLL_SECONDS)

    def _paces(self, look: _Look, period: str) -> list[WorkerPace]:
        """How the workers make their steps, as far as it is known here."""
        group = self._group
        if group is None:
            return [_pace("worker 0", look.as_message())]
        rows = [(rank, one[period]) for rank, one in enumerate(self._messages) if self._is_of(one)]
        known = dict(rows) | {group.rank: look.as_message()}
        return [_pace(group.names[rank], known[rank]) for rank in sorted(known)]

    def _is_of(self, message: Any) -> bool:
        return message is not None and message["number"] == self._number


def _pace(name: str, message: Sequence[float]) -> WorkerPace:
    steps, own, waiting = message
    return WorkerPace(name, int(steps), own / max(steps, 1), waiting / max(steps, 1))


def _annotation(name: str, number: int) -> contextlib.AbstractContextManager[Any] | None:
    """Marks a step in the trace of ``jax.profiler``, which knows steps by this."""
    if not jax.profiler.TraceAnnotation.is_enabled():
        return None
    return jax.profiler.StepTraceAnnotation(name, step_num=number)


def _scalars(report: WatchReport) -> dict[str, float]:
    """What TensorBoard shows, by name."""
    found = {
        "steps_per_second": report.steps_per_second,
        **{f"share_of_{name}": share for name, share in report.shares.items()},
        "memory_bytes": report.memory_bytes,
        "retraces": sum(report.retraces.values()),
        "slowdown": max((worker.slowdown for worker in report.workers), default=1.0),
    }
    if report.examples_per_second is not None:
        found["examples_per_second"] = report.examples_per_second
    return found
