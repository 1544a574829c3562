"""What a scheduled closure will give, when a worker has run it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.core import nest
from replicax.core.errors import ReplicaxError


class ClosureCancelledError(ReplicaxError, RuntimeError):
    """A closure was not run, because another one failed before it, or the coordinator was closed.

    Example:
        >>> import replicax as rx
        >>> cluster = rx.cluster_resolver.SimpleClusterResolver({"ps": ["a:1"], "worker": ["b:1"]})
        >>> coordinator = rx.coordinator.ClusterCoordinator(rx.ParameterServerStrategy(cluster))
        >>> coordinator.close()
        >>> coordinator.schedule(lambda: 1)
        Traceback (most recent call last):
        ...
        replicax...ClosureCancelledError: the coordinator is closed, and schedules no more.
    """


class RemoteValue:
    """What a scheduled closure will give; made by ``ClusterCoordinator.schedule``.

    Example:
        >>> import replicax as rx
        >>> cluster = rx.cluster_resolver.SimpleClusterResolver({"ps": ["a:1"], "worker": ["b:1"]})
        >>> coordinator = rx.coordinator.ClusterCoordinator(rx.ParameterServerStrategy(cluster))
        >>> value = coordinator.schedule(lambda x: 2 * x, args=(21,))
        >>> value.fetch()
        42
    """

    def __init__(self) -> None:
        """A value that is not there yet."""
        self._done = threading.Event()
        self._outputs: Any = None
        self._finish: Callable[[Any], Any] | None = None
        self._error: BaseException | None = None

    def _set(self, outputs: Any, finish: Callable[[Any], Any]) -> None:
        if self._done.is_set():  # run again after a rollback: what was given once stays
            return
        self._outputs, self._finish = outputs, finish
        self._done.set()

    def _fail(self, error: BaseException) -> None:
        if self._done.is_set():
            return
        self._error = error
        self._done.set()

    def get(self, timeout: float | None = None) -> Any:
        """Waits for the value.

        Args:
            timeout: How many seconds to wait at most; None for as long as it takes.

        Returns:
            What the closure returned, with arrays of JAX.

        Raises:
            BaseException: What the closure raised.
            ClosureCancelledError: If it was not run, because another one failed.
            TimeoutError: If it is not there in time.
        """
        return nest.map_leaves(_as_array, self._result(timeout))

    def fetch(self, timeout: float | None = None) -> Any:
        """Waits for the value.

        Args:
            timeout: How many seconds to wait at most; None for as long as it takes.

        Returns:
            What the closure returned, with arrays of NumPy.

        Raises:
            BaseException: What the closure raised.
            ClosureCancelledError: If it was not run, because another one failed.
            TimeoutError: If it is not there in time.
        """
        return nest.map_leaves(_as_host_value, self._result(timeout))

    def _result(self, timeout: float | None) -> Any:
        if not self._done.wait(timeout):
            raise TimeoutError(f"the closure has not given a value within {timeout} seconds.")
        if self._error is not None:
            raise self._error
        assert self._finish is not None
        return self._finish(self._outputs)

    def __repr__(self) -> str:
        if not self._done.is_set():
            return "<RemoteValue, not there yet>"
        state = "there" if self._error is None else type(self._error).__name__
        return f"<RemoteValue, {state}>"


def _as_array(leaf: Any) -> Any:
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf


def _as_host_value(leaf: Any) -> Any:
    if isinstance(leaf, RemoteValue):
        return leaf.fetch()
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf
