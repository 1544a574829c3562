"""Tells a ``function`` that it must run as a host loop.

Data that lives on the host cannot be read inside a compiled program. A source of
such data calls `enter_host_code`; if that happens while a ``function`` is being
traced, the trace is dropped and the function runs as Python, with each ``run``
inside it compiled.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from replicax.core.errors import ContextError
from replicax.engine.trace.frame import current_frame

CompiledRun = Callable[..., Any]


class HostLoopRequired(BaseException):
    """The function being traced iterates over data on the host.

    Not an Exception, so that user code lets it pass.
    """


class _Loop(threading.local):
    compiled_run: CompiledRun | None = None


_loop = _Loop()


def enter_host_code(what: str) -> None:
    """Called by a source of host data before it hands out any.

    Args:
        what: What the source is, for errors.

    Raises:
        HostLoopRequired: In the trace of a ``function``, which then starts over.
        ContextError: In a compiled replica function, where no host loop can help.
    """
    frame = current_frame()
    if frame is None:
        return
    if frame.in_replica:
        raise ContextError(
            f"{what} was iterated inside a compiled run. Iterate outside, and pass each element "
            "through the args of run."
        )
    raise HostLoopRequired(what)


@contextlib.contextmanager
def host_loop(compiled_run: CompiledRun) -> Iterator[None]:
    """Makes every ``run`` on this thread call `compiled_run`."""
    outer, _loop.compiled_run = _loop.compiled_run, compiled_run
    try:
        yield
    finally:
        _loop.compiled_run = outer


def compiled_run_of_loop() -> CompiledRun | None:
    """How a ``run`` is compiled in the host loop this thread is in, or None."""
    return _loop.compiled_run
