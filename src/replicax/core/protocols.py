"""What lower layers may know of higher ones."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol


class StrategyLike(Protocol):
    """A strategy, as contexts and variables see it."""

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas run in step."""
        ...

    @property
    def extended(self) -> Any:
        """The strategy's own logic."""
        ...


DIFFERENT: Any = type("Different", (), {"__repr__": lambda self: "DIFFERENT"})()
"""What `CompiledCallable._repeat` returns for a call that is not the last one again."""


class CompiledCallable:
    """A function that compiles itself and can do so for all replicas at once.

    No abc.ABC: `isinstance` of one is part of every step, and slow.

    Attributes:
        _repeat: From strategy and arguments to the result of ``run``, if that is the last
            call again, else to `DIFFERENT`.
        python_function: What it compiles.
    """

    _repeat: Callable[[Any, Sequence[Any], Mapping[str, Any] | None], Any]
    python_function: Callable[..., Any]

    @abc.abstractmethod
    def _with_function(self, python_function: Callable[..., Any]) -> CompiledCallable:
        """The same of another function."""

    @abc.abstractmethod
    def _run_replicated(
        self, strategy: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: Any
    ) -> Any:
        """Runs the function on every replica of `strategy`, as one program."""


class HostIterable:
    """A source of per-replica values that lives on the host.

    A ``function`` that gets or meets one runs as a host loop. Subclasses call
    `replicax.execution.host_loop.enter_host_code` before they hand out data.
    """

    __slots__ = ()
