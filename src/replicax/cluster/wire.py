"""JSON objects over a TCP connection, one a line, with every wait bounded."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from replicax.core import bounded_json
from replicax.core.errors import ClusterPlatformError

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
SEND_SECONDS = 10.0

# A machine that lost its power sends no end: a silent connection is lost after about this time.
_SILENCE_SECONDS = 10


class Connection:
    """One end of a connection between two processes of a cluster.

    Args:
        sock: A connected socket, which is owned from now on.
        peer: What messages call the other end.
        max_bytes: The longest message that is read from it.

    Example:
        >>> ours, theirs = socket.socketpair()
        >>> one, other = Connection(ours, "worker 1"), Connection(theirs, "worker 0")
        >>> one.send({"type": "hello"})
        >>> other.receive(10.0)
        {'type': 'hello'}
        >>> other.receive(0.0) is None
        True
        >>> one.close(); other.close()
    """

    def __init__(
        self, sock: socket.socket, peer: str, *, max_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        self.peer = peer
        self._max_bytes = max_bytes
        self._socket = sock
        self._rest = b""
        if sock.family != socket.AF_UNIX:
            _notice_silence(sock)

    def send(self, message: dict[str, Any]) -> None:
        """Sends one message.

        Raises:
            ClusterPlatformError: If the other end is gone.
        """
        try:
            self._socket.settimeout(SEND_SECONDS)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise self._lost(str(error)) from error

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """The next message; None if none comes in time.

        Raises:
            ClusterPlatformError: If the other end is gone, or sends something else.
        """
        deadline = time.monotonic() + seconds
        while b"\n" not in self._rest:
            if len(self._rest) > self._max_bytes:
                raise self._lost(f"it sent a message of more than {self._max_bytes} bytes")
            left = max(deadline - time.monotonic(), 0.0)
            try:
                self._socket.settimeout(left)  # 0.0 does not wait
                data = self._socket.recv(65536)
            except (TimeoutError, BlockingIOError):
                return None
            except OSError as error:
                raise self._lost(str(error)) from error
            if not data:
                raise self._lost("it closed the connection")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            message = bounded_json.parse(line, max_bytes=self._max_bytes)
        except bounded_json.JsonError as error:
            raise self._lost(f"it sent {line[:40]!r}, which {error}") from error
        if not isinstance(message, dict):
            raise self._lost(f"it sent {line[:40]!r}, which is no JSON object")
        return message

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def _lost(self, why: str) -> ClusterPlatformError:
        return ClusterPlatformError(f"the connection to {self.peer} is lost: {why}.")


def _notice_silence(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_NODELAY": 1,
        "TCP_KEEPIDLE": _SILENCE_SECONDS // 2,
        "TCP_KEEPINTVL": 1,
        "TCP_KEEPCNT": _SILENCE_SECONDS // 2,
        "TCP_USER_TIMEOUT": _SILENCE_SECONDS * 1000,
    }
    for name, value in options.items():
        if hasattr(socket, name):  # some are of Linux only
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
