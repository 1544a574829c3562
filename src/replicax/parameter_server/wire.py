"""Messages over sockets: an authenticated connection, and a listener that answers calls.

Both ends prove that they hold the token before anything else is read; it is not sent. One thread
answers one connection, so a caller has as many connections as calls at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from replicax.core.errors import ReplicaxError
from replicax.parameter_server.encoding import MAX_TEXT_BYTES, MessageError, ReceivedText, encode

_GREETING = b"replicax parameter server 1\n"
_NONCE_BYTES = 32
_PROOF_BYTES = hashlib.sha256().digest_size
_HANDSHAKE_SECONDS = 5.0  # for who has connected, and has proved nothing
_PATIENCE_SECONDS = 60.0  # for who is connected to: it may get no processor for a while
_CONNECT_SECONDS = 10.0
_MAX_UNKNOWN = 64  # connections that have not proved anything
_PACKED_BYTES = 16384  # smaller buffers are sent as one
_READ_AHEAD = 1 << 18
_LENGTH = struct.Struct("!I")


class TokenError(ReplicaxError, ConnectionError):
    """The other end of a connection does not hold the token."""


class Wire:
    """One end of an authenticated connection.

    Args:
        sock: A connected socket, which is owned from now on.
        token: The secret that both ends hold.
        is_caller: Whether this end has asked for the connection.
        seconds: How long the other end may take to prove that it holds the token.

    Raises:
        TokenError: If the other end does not hold the token.
        OSError: If the connection breaks.

    Example:
        >>> ours, theirs = socket.socketpair()
        >>> def greet():
        ...     with contextlib.closing(Wire(theirs, b"t", is_caller=False)) as wire:
        ...         wire.send("hi")
        >>> threading.Thread(target=greet).start()
        >>> with contextlib.closing(Wire(ours, b"t", is_caller=True)) as wire:
        ...     wire.receive()
        'hi'
    """

    def __init__(
        self,
        sock: socket.socket,
        token: bytes,
        *,
        is_caller: bool,
        seconds: float = _HANDSHAKE_SECONDS,
    ) -> None:
        self._socket = sock
        self._file: Any = None
        try:
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(seconds)
            self._prove(token, is_caller)
            sock.settimeout(None)
            self._file = sock.makefile("rb", buffering=_READ_AHEAD)
        except BaseException:
            sock.close()
            raise

    def _prove(self, token: bytes, is_caller: bool) -> None:
        end = time.monotonic() + _HANDSHAKE_SECONDS
        own = secrets.token_bytes(_NONCE_BYTES)
        self._socket.sendall(_GREETING + own)
        greeting = self._exactly(len(_GREETING) + _NONCE_BYTES, end)
        if not greeting.startswith(_GREETING):
            raise TokenError(f"{greeting[:20]!r} is no greeting of a parameter server.")
        other = greeting[len(_GREETING) :]
        asked = own + other if is_caller else other + own
        roles = (b"caller", b"answerer") if is_caller else (b"answerer", b"caller")
        ours, theirs = (hmac.digest(token, role + asked, "sha256") for role in roles)
        if is_caller:
            self._socket.sendall(ours)
        if not hmac.compare_digest(self._exactly(_PROOF_BYTES, end), theirs):
            raise TokenError(
                "the other end of a connection does not hold the token of this job. Is it a server "
                "or worker of another job?"
            )
        if not is_caller:
            self._socket.sendall(ours)

    def _exactly(self, count: int, end: float) -> bytes:
        data = b""
        while len(data) < count:
            if (left := end - time.monotonic()) <= 0:
                raise TimeoutError("the other end of a connection did not say who it is in time.")
            self._socket.settimeout(left)
            part = self._socket.recv(count - len(data))
            if not part:
                raise TokenError("the other end refused the token of this job, or is gone.")
            data += part
        return data

    def send(self, message: Any) -> None:
        """Sends one message.

        Raises:
            MessageError: If it cannot be written.
            OSError: If the connection breaks.
        """
        text, buffers = encode(message)
        if len(text) > MAX_TEXT_BYTES:
            raise MessageError(f"a message of {len(text)} bytes without its arrays is too long.")
        packed = bytearray(_LENGTH.pack(len(text)) + text)
        for buffer in buffers:
            if buffer.size < _PACKED_BYTES:
                packed += buffer.data
                continue
            if packed:
                self._socket.sendall(packed)
                packed = bytearray()
            self._socket.sendall(buffer.data)
        if packed:
            self._socket.sendall(packed)

    def receive(self) -> Any:
        """The next message.

        Raises:
            MessageError: If something else comes.
            OSError: If the connection breaks.
        """
        (length,) = _LENGTH.unpack(self._read(np.empty(_LENGTH.size, np.uint8)).tobytes())
        if length > MAX_TEXT_BYTES:
            raise MessageError(f"a message of {length} bytes without its arrays is too long.")
        text = ReceivedText.parse(self._read(np.empty(length, np.uint8)).tobytes())
        return text.decode([self._read(spec.allocate()) for spec in text.buffers])

    def _read(self, data: np.ndarray) -> np.ndarray:
        view, done = data.data, 0
        while done < len(view):
            count = self._file.readinto(view[done:])
            if not count:
                raise ConnectionError("the other end closed the connection")
            done += count
        return data

    def is_answered(self, seconds: float) -> bool:
        """Whether something comes within so many seconds; nothing that came before may be left."""
        return bool(select.select([self._socket], [], [], seconds)[0])

    def cut(self) -> None:
        """Ends the connection, also while another thread waits in it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connection."""
        self.cut()
        self._file.close()
        self._socket.close()


def connect(host: str, port: int, token: bytes, *, seconds: float = _PATIENCE_SECONDS) -> Wire:
    """A connection to a listener, which may take so many `seconds` to answer.

    Raises:
        OSError: If it cannot be made, or a `TokenError`; a TimeoutError if there is no answer.
    """
    sock = socket.create_connection((host, port), timeout=_CONNECT_SECONDS)
    return Wire(sock, token, is_caller=True, seconds=seconds)


def _call_in(message: Any) -> list[Any]:
    if not (isinstance(message, list) and message and isinstance(message[0], str)):
        raise MessageError(f"{message!r} is no call; expected a list of a name and arguments.")
    return message


class CallListener:
    """Answers calls: each message is a list of a name and arguments.

    Args:
        host: The interface at which it listens, and no other.
        token: What callers must hold.
        answer: Called with the name and the arguments, in a thread for each connection; what it
            returns is the answer.
        written: What is sent for an exception.

    Attributes:
        port: Where it listens.
    """

    def __init__(
        self,
        host: str,
        token: bytes,
        answer: Callable[..., Any],
        written: Callable[[BaseException], Any],
    ) -> None:
        self._token = token
        self._answer = answer
        self._written = written
        self._unknown = threading.BoundedSemaphore(_MAX_UNKNOWN)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family)
        self._socket.bind((host, 0))
        self._socket.listen()
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._listen, daemon=True, name="replicax listener").start()

    def _listen(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:  # closed
                return
            if not self._unknown.acquire(blocking=False):
                sock.close()
                continue
            threading.Thread(
                target=self._serve, args=(sock,), daemon=True, name="replicax calls"
            ).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            wire = Wire(sock, self._token, is_caller=False)
        except OSError:
            return
        finally:
            self._unknown.release()
        with contextlib.closing(wire), contextlib.suppress(OSError, MessageError):
            while True:
                name, *arguments = _call_in(wire.receive())
                try:
                    reply = ["done", self._answer(name, *arguments)]
                except BaseException as error:
                    reply = ["raised", self._written(error)]
                wire.send(reply)

    def close(self) -> None:
        """Listens no more."""
        self._socket.close()
