"""The table of executors that every contract test runs over.

An executor is called as ``execute(strategy, fn, args=(), kwargs=None)`` and gives what
``strategy.run`` gives. "inside" makes the run a part of a larger compiled function.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import replicax as rx


@dataclasses.dataclass(frozen=True)
class Executor:
    """One way to run a replica function.

    Attributes:
        name: The row of the table.
        is_compiled: Whether ``fn`` is traced, so that its values are tracers.
    """

    name: str
    is_compiled: bool
    how: Callable[..., Any]

    def __call__(self, strategy, fn, args=(), kwargs=None, options=None):
        return self.how(strategy, fn, args, kwargs, options)

    def prepare(self, strategy, fn, options=None):
        """A callable that runs `fn` on every replica, again and again, with its arguments."""
        if self.name == "eager":
            return lambda *args, **kwargs: strategy.run(fn, args, kwargs, options)
        compiled = rx.function(fn)
        if self.name == "compiled":
            return lambda *args, **kwargs: strategy.run(compiled, args, kwargs, options)
        return rx.function(lambda *args, **kwargs: strategy.run(fn, args, kwargs, options))


def _eager(strategy, fn, args, kwargs, options):
    return strategy.run(fn, args, kwargs, options)


def _compiled(strategy, fn, args, kwargs, options):
    return strategy.run(rx.function(fn), args, kwargs, options)


def _inside(strategy, fn, args, kwargs, options):
    return rx.function(lambda: strategy.run(fn, args, kwargs, options))()


EXECUTORS: dict[str, Executor] = {
    "eager": Executor("eager", False, _eager),
    "compiled": Executor("compiled", True, _compiled),
    "inside": Executor("inside", True, _inside),
}
