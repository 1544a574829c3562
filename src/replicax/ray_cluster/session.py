"""The connection of this process to Ray: to a cluster that exists, or to one of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from replicax.core.errors import ClusterPlatformError
from replicax.core.extras import require_extra
from replicax.ray_cluster.local import LOOPBACK, LocalCluster

LOCAL = "local"


class Session:
    """A connection to Ray, until `close`.

    A program that is connected already stays so: its connection is used, and left as it is.

    Args:
        address: ``local`` for a cluster of this machine that ends with the session, ``auto`` for
            the one that runs here, or ``host:port``.
        num_cpus: How many CPUs a cluster of its own gives away.
        is_cancelled: Ends the wait when it becomes true.

    Attributes:
        ray: The library.

    Raises:
        ImportError: If Ray is not installed.
        ClusterPlatformError: If there is no connection.

    Example:
        >>> with Session("local", num_cpus=2) as session:  # doctest: +SKIP
        ...     session.ray.cluster_resources()["CPU"]
        2.0
    """

    def __init__(
        self,
        address: str = LOCAL,
        *,
        num_cpus: int = 1,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        require_extra("ray", user="a cluster of Ray", extra="ray")
        self._resources = contextlib.ExitStack()
        with contextlib.ExitStack() as opening:
            options: dict[str, Any] = {}
            if address == LOCAL and not _is_connected():
                cluster = opening.enter_context(
                    LocalCluster(num_cpus=num_cpus, is_cancelled=is_cancelled)
                )
                address = cluster.address
                opening.enter_context(_set(cluster.environment))  # before Ray is imported
                options = {"_node_ip_address": LOOPBACK}
            self.ray = _library()
            if not self.ray.is_initialized():
                self._connect(address, options)
                opening.callback(self.ray.shutdown)
            self._resources = opening.pop_all()

    def _connect(self, address: str, options: Mapping[str, Any]) -> None:
        try:
            with _own_handlers():
                self.ray.init(
                    address,
                    log_to_driver=False,
                    logging_level="ERROR",
                    configure_logging=False,
                    **options,
                )
        except (self.ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
            raise ClusterPlatformError(
                f"there is no connection to Ray at {address!r} ({_first_line(error)}). Give the "
                "address that `ray start --head` has printed, and where the cluster asks for a "
                "token, name its file in RAY_AUTH_TOKEN_PATH."
            ) from error

    def close(self) -> None:
        """Leaves the cluster, and ends one of its own; a second time it does nothing."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _library() -> Any:
    import ray

    return ray


def _is_connected() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


@contextlib.contextmanager
def _own_handlers() -> Iterator[None]:
    """Leaves the signals of this process to the program: Ray takes SIGTERM for itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None:  # it was not set by Python
                signal.signal(number, handler)


@contextlib.contextmanager
def _set(variables: Mapping[str, str]) -> Iterator[None]:
    """Has environment variables set, and as they were at the end."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
