"""Carries the connection to JAX's coordination service, and hides from JAX when it breaks.

JAX ends a process with SIGABRT as soon as its connection to the service breaks, before any Python
code can say which worker has gone. So JAX connects to a relay in its own process. When the service
goes, JAX's side of the connection stays open and silent; `Workers` asks `is_cut`, names the worker
and raises. `joining` makes the relay; bytes are passed on as they are.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

_LOOPBACK = "127.0.0.1"
_CONNECT_SECONDS = 5.0
_RETRY_SECONDS = 0.1
_CHUNK = 1 << 16


class Relay:
    """Listens on the loopback interface, and passes each connection on to the service.

    Args:
        service: Its address, ``host:port``.
        start_seconds: How long the service may take to come.

    Attributes:
        address: Where the relay listens.

    Example:
        >>> with socket.create_server(("127.0.0.1", 0)) as service:
        ...     host, port = service.getsockname()
        ...     relay = Relay(f"{host}:{port}", start_seconds=5)
        ...     near = socket.create_connection(relay.address.split(":"))
        ...     far, _ = service.accept()
        >>> near.sendall(b"hello")
        >>> far.recv(5), relay.is_cut
        (b'hello', False)
        >>> near.close()
        >>> far.recv(5), relay.is_cut
        (b'', False)
        >>> far.close()
    """

    def __init__(self, service: str, *, start_seconds: float) -> None:
        host, _, port = service.rpartition(":")
        self._service = host.strip("[]"), int(port)
        self._start_until = time.monotonic() + start_seconds
        self._has_started = False
        self._cut = threading.Event()
        self._listener = socket.create_server((_LOOPBACK, 0))
        self.address = f"{_LOOPBACK}:{self._listener.getsockname()[1]}"
        _start(self._accept)

    @property
    def is_cut(self) -> bool:
        """Whether the service has ended a connection, or refused one after it had started."""
        return self._cut.is_set()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            _start(self._carry, near)

    def _carry(self, near: socket.socket) -> None:
        far = self._connect()
        if far is None:
            if self._has_started:
                self._cut.set()
                _drain(near)
            near.close()  # JAX then says that it cannot connect
            return
        self._has_started = True
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        is_over = threading.Event()
        _start(self._answer, far, near, is_over)
        _pass_on(near, far)
        is_over.set()  # JAX has ended the connection, not the service
        with contextlib.suppress(OSError):
            far.shutdown(socket.SHUT_RDWR)
        near.close()

    def _answer(self, far: socket.socket, near: socket.socket, is_over: threading.Event) -> None:
        _pass_on(far, near)
        if not is_over.is_set():
            self._cut.set()
        far.close()

    def _connect(self) -> socket.socket | None:
        while True:
            try:
                far = socket.create_connection(self._service, timeout=_CONNECT_SECONDS)
            except OSError:
                if self._has_started or time.monotonic() > self._start_until:
                    return None
                time.sleep(_RETRY_SECONDS)
            else:
                far.settimeout(None)
                return far


def _start(action: Callable[..., None], *args: object) -> None:
    threading.Thread(target=action, args=args, name="replicax-relay", daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    """Until `source` ends. What the sink does not take any more is dropped."""
    is_open = True
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            if is_open:
                try:
                    sink.sendall(data)
                except OSError:
                    is_open = False


def _drain(near: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while near.recv(_CHUNK):
            pass
