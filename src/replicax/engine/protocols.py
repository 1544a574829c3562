"""What the engine knows of a strategy, and what it must know of a compiled function."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable
from typing import Any, Protocol

from replicax.backend.collectives import Reduction
from replicax.backend.mesh import ReplicaMesh
from replicax.core.enums import ReduceOpLike
from replicax.engine.threads import ReplicaThreads


class ExtendedLike(Protocol):
    """The part of a strategy that is for libraries, as the engine uses it.

    Attributes:
        _serial: A number that no other strategy of this process has, or will have.
        _is_default: Whether it is the strategy in force where none was entered.
        _reduction: How values of different replicas are added.
        _threads: The threads of its replicas, once the eager executor has made them.
    """

    _serial: int
    _is_default: bool
    _reduction: Reduction
    _threads: ReplicaThreads | None

    @property
    def mesh(self) -> ReplicaMesh:
        """The devices of the replicas."""
        ...

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The device of each replica of this worker, by name."""
        ...

    def create_variable(self, **options: Any) -> Any:
        """A variable for code in the scope of the strategy."""
        ...


class StrategyLike(Protocol):
    """A strategy, as the engine and variables see it: the replicas, and how they are added up."""

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas run in step."""
        ...

    @property
    def extended(self) -> ExtendedLike:
        """The strategy's own logic."""
        ...

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which the strategy is the current one."""
        ...

    def reduce(self, reduce_op: ReduceOpLike, value: Any, axis: Any = None) -> Any:
        """Combines a per-replica value into one."""
        ...

    def gather(self, value: Any, axis: int) -> Any:
        """The components of all replicas, concatenated."""
        ...

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """The components on this worker."""
        ...


def variable_of(value: Any) -> Any:
    """The variable that `value` keeps its value in, or `value` itself.

    An object of another library that stores its value in one of our variables gives it as
    ``replicax_variable``, and may then be used where a variable is asked for.
    """
    return getattr(value, "replicax_variable", value)


DIFFERENT: Any = type("Different", (), {"__repr__": lambda self: "DIFFERENT"})()
"""What repeating a call gives for a call that is not the last one again."""


class CompiledCallable:
    """A function that compiles itself; no `abc.ABC`, whose `isinstance` is slow.

    Attributes:
        python_function: What it compiles.
    """

    python_function: Callable[..., Any]

    @abc.abstractmethod
    def _with_function(self, python_function: Callable[..., Any]) -> CompiledCallable:
        """The same of another function."""


class HostIterable:
    """A source of per-replica values that lives on the host.

    A ``function`` that gets or meets one runs as a host loop. Subclasses call
    `replicax.engine.trace.host_loop.enter_host_code` before they hand out data.
    """

    __slots__ = ()
