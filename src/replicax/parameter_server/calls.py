"""Calls of servers and workers in other processes: stubs with their methods; errors that travel.

A stub has the methods of `transport.Server` or `transport.Worker` and sends each as a message. When
its task is gone, what waits in it raises `ServerGoneError` or `WorkerGoneError`.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Any

from replicax.core import errors
from replicax.parameter_server import transport, wire
from replicax.parameter_server.encoding import MessageError
from replicax.parameter_server.messages import (
    Array,
    Attempt,
    ClosureCall,
    ClosureReply,
    OtherShapes,
    ProgramSpec,
    ReadReply,
    RowsReply,
    ServerSnapshot,
    ShardSpec,
    Update,
)
from replicax.parameter_server.transport import ServerGoneError, TaskGoneError, WorkerGoneError
from replicax.parameter_server.wire import Wire

_KNOWN_ERRORS: dict[str, type[Exception]] = {
    name: value
    for module in (builtins, errors, transport)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, Exception)
}


def written_error(error: BaseException) -> dict[str, Any]:
    """What is sent of an exception: its type, its text, and where it was raised."""
    return {
        "type": type(error).__name__,
        "module": type(error).__module__,
        "text": str(error.args[0]) if error.args else str(error),
        "index": getattr(error, "index", None),
        "trace": "".join(traceback.format_exception(error)),
        "notes": list(getattr(error, "__notes__", ())),
    }


def read_error(fields: dict[str, Any], where: str) -> Exception:
    """The exception that was sent; of a type that this process does not have a RuntimeError.

    Example:
        >>> error = read_error(written_error(KeyError("x")), "worker 1")
        >>> error, "Raised on worker 1" in error.__notes__[0]
        (KeyError('x'), True)
    """
    kind = _KNOWN_ERRORS.get(fields["type"]) or _own_error(fields["module"], fields["type"])
    text = fields["text"]
    if kind is not None and issubclass(kind, TaskGoneError):
        return kind(text, fields["index"])
    try:
        error = RuntimeError(f"{fields['type']}: {text}") if kind is None else kind(text)
    except TypeError:  # it has other arguments
        error = RuntimeError(f"{fields['type']}: {text}")
    error.add_note(f"Raised on {where}:\n{fields['trace']}")
    for note in fields["notes"]:
        error.add_note(note)
    return error


def _own_error(module: str, name: str) -> type[Exception] | None:
    """The exception of a user, at the top of a module that this process has imported already."""
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


class TaskStub:
    """Calls of one task in another process.

    Args:
        index: Its number.
        token: The secret of the job.
    """

    kind = "task"
    gone: type[TaskGoneError] = TaskGoneError

    def __init__(self, index: int, token: bytes) -> None:
        self.index = index
        self._token = token
        self._lock = threading.Lock()
        self._address: tuple[str, int] | None = None
        self._reason = "it has not started"
        self._idle: list[Wire] = []
        self._busy: set[Wire] = set()

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.kind} {self.index}"

    def gone_because(self, reason: str) -> TaskGoneError:
        """The error of a call that cannot be carried out."""
        return self.gone(f"{self.name} is gone: {reason}.", self.index)

    def found_at(self, host: str, port: int) -> None:
        """Says where the task is; calls reach it from now on."""
        self.lost("it is somewhere else now")
        with self._lock:
            self._address = host, port

    def lost(self, reason: str) -> None:
        """Says that the task is gone: calls raise, also those that wait for it."""
        with self._lock:
            self._address, self._reason = None, reason
            idle, busy = list(self._idle), list(self._busy)
            self._idle.clear()
        for one in idle:
            one.close()
        for one in busy:  # whoever waits in it closes it
            one.cut()

    def call(self, method: str, *arguments: Any) -> Any:
        """What the task answers.

        Raises:
            TaskGoneError: If the task is gone.
            Exception: What it raised there.
        """
        one = None
        try:
            one = self._taken()
            one.send([method, *arguments])
            outcome, value = one.receive()
        except MessageError:
            self._dropped(one)
            raise
        except OSError as error:
            self._dropped(one)
            with self._lock:
                reason = str(error) if self._address else self._reason
            raise self.gone_because(reason) from error
        self._given_back(one)
        if outcome == "raised":
            raise read_error(value, self.name)
        return value

    def _taken(self) -> Wire:
        with self._lock:
            address = self._address
            if address is None:
                raise ConnectionError(self._reason)
            one = self._idle.pop() if self._idle else None
            if one is not None:
                self._busy.add(one)
                return one
        one = wire.connect(*address, self._token)
        with self._lock:
            if self._address == address:
                self._busy.add(one)
                return one
        one.close()
        raise ConnectionError(self._reason)

    def _given_back(self, one: Wire) -> None:
        with self._lock:
            self._busy.discard(one)
            if self._address is not None:
                self._idle.append(one)
                return
        one.close()

    def _dropped(self, one: Wire | None) -> None:
        if one is not None:
            with self._lock:
                self._busy.discard(one)
            with contextlib.suppress(OSError):
                one.close()


class ServerStub(TaskStub):
    """A `transport.Server` in another process.

    `register_optimizer` is the task of who has started it: what it takes is pickled.
    """

    kind = "server"
    gone = ServerGoneError

    def create(self, specs: Sequence[ShardSpec], values: Sequence[Array]) -> None:
        """See `transport.Server.create`."""
        self.call("create", list(specs), list(values))

    def drop(self, shard_ids: Sequence[int]) -> None:
        """See `transport.Server.drop`."""
        self.call("drop", list(shard_ids))

    def read(self, shard_ids: Sequence[int], known_versions: Sequence[int]) -> ReadReply:
        """See `transport.Server.read`."""
        return self.call("read", list(shard_ids), list(known_versions))

    def gather(self, shard_id: int, rows: Array) -> RowsReply:
        """See `transport.Server.gather`."""
        return self.call("gather", shard_id, rows)

    def stage(self, attempt: Attempt, updates: Sequence[Update]) -> None:
        """See `transport.Server.stage`."""
        self.call("stage", attempt, list(updates))

    def commit(self, attempt: Attempt) -> int:
        """See `transport.Server.commit`."""
        return self.call("commit", attempt)

    def abort(self, attempt: Attempt) -> bool:
        """See `transport.Server.abort`."""
        return self.call("abort", attempt)

    def decided(self, closures: Sequence[int]) -> dict[int, int]:
        """See `transport.Server.decided`."""
        return self.call("decided", list(closures))

    def snapshot(self) -> ServerSnapshot:
        """See `transport.Server.snapshot`."""
        return self.call("snapshot")

    def restore(self, snapshot: ServerSnapshot, epoch: int) -> None:
        """See `transport.Server.restore`."""
        self.call("restore", snapshot, epoch)


class WorkerStub(TaskStub):
    """A `transport.Worker` in another process.

    `make_dataset` is the task of who has started it: what it takes is pickled.
    """

    kind = "worker"
    gone = WorkerGoneError

    def register_program(self, spec: ProgramSpec) -> None:
        """See `transport.Worker.register_program`."""
        self.call("register_program", spec)

    def make_iterator(self, iterator_id: int, dataset_id: int) -> None:
        """See `transport.Worker.make_iterator`."""
        self.call("make_iterator", iterator_id, dataset_id)

    def run(self, call: ClosureCall) -> ClosureReply | OtherShapes:
        """See `transport.Worker.run`."""
        return self.call("run", call)
