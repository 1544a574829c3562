"""How the coordinator, the workers and the servers reach each other: the interface of transports.

A transport brings two lists to the coordinator: a `Server` and a `Worker` for each task. What a
server and a worker *do* is written once, in `server.ServerState` and `worker.WorkerState`. A
transport only decides where those objects live, and carries calls to them. `embedded` has them in
this process; another one has them in processes of their own, with stubs of the same methods here.

Threads: the coordinator has one thread for each worker, which alone calls `Worker.run` of that
worker. Everything of a server may be called from any thread, at any time, also by several at once.

A call that cannot be carried out because the other side is gone, or does not answer, raises
`WorkerGoneError` or `ServerGoneError`. Nothing is tried again by the transport.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from replicax.core.errors import ReplicaxError
from replicax.parameter_server.messages import (
    Array,
    Attempt,
    ClosureCall,
    ClosureReply,
    DatasetSpec,
    OptimizerSpec,
    OtherShapes,
    ProgramSpec,
    ReadReply,
    RowsReply,
    ServerSnapshot,
    ShardSpec,
    Update,
)


class TaskGoneError(ReplicaxError, RuntimeError):
    """A worker or a server cannot be reached.

    Attributes:
        index: Its number.
    """

    def __init__(self, message: str, index: int) -> None:
        """An error about task `index`."""
        super().__init__(message)
        self.index = index


class WorkerGoneError(TaskGoneError):
    """A worker has ended, was stopped or does not answer; what it ran may be run elsewhere.

    A coordinator raises it only when no worker is left.

    Example:
        >>> WorkerGoneError("worker 1 has ended", 1).index
        1
    """


class ServerGoneError(TaskGoneError):
    """A server has ended, was stopped or does not answer; what it held is lost.

    Example:
        >>> ServerGoneError("server 0 has ended", 0).index
        0
    """


class FencedError(ReplicaxError, RuntimeError):
    """A server was told of an attempt that has been given up. The worker drops the closure."""


class Server(Protocol):
    """One parameter server: shards, optimizers, and updates that wait for the decision.

    Reads see committed updates only. All methods may be called by several threads.
    """

    def create(self, specs: Sequence[ShardSpec], values: Sequence[Array]) -> None:
        """Takes new shards with their values; a shard that it has gets the value anew."""
        ...

    def drop(self, shard_ids: Sequence[int]) -> None:
        """Forgets shards; those it does not have are left out."""
        ...

    def register_optimizer(self, spec: OptimizerSpec) -> None:
        """Takes an optimizer for its own shards; again with more of them, if there are."""
        ...

    def read(self, shard_ids: Sequence[int], known_versions: Sequence[int]) -> ReadReply:
        """The shards whose version is another than the reader's; versions never go back."""
        ...

    def gather(self, shard_id: int, rows: Array) -> RowsReply:
        """The `rows` (int32, one dim) of a shard."""
        ...

    def stage(self, attempt: Attempt, updates: Sequence[Update]) -> None:
        """Keeps updates until `commit` or `abort`; several calls of one attempt add up.

        Raises:
            FencedError: The attempt was aborted, committed or belongs to an older epoch.
        """
        ...

    def commit(self, attempt: Attempt) -> int:
        """Applies what the attempt has staged, all at once, and only the first time it is asked.

        Returns:
            How many closures had been committed before.

        Raises:
            FencedError: The attempt was aborted, another attempt at the closure was committed, or
                it belongs to an older epoch.
        """
        ...

    def abort(self, attempt: Attempt) -> bool:
        """Forgets what the attempt, and older ones at the closure, staged; refuses more from them.

        Returns:
            True; False if the attempt has been committed, which stays so.
        """
        ...

    def decided(self, closures: Sequence[int]) -> dict[int, int]:
        """Which of these closures are committed here, and the number of the attempt of each.

        With none it asks whether the server is there, also of one that waits for `restore`.
        """
        ...

    def snapshot(self) -> ServerSnapshot:
        """Everything committed, at one moment."""
        ...

    def restore(self, snapshot: ServerSnapshot, epoch: int) -> None:
        """Holds what is in `snapshot` and nothing else, and begins `epoch`.

        All that is staged is forgotten. A server in the place of a lost one raises
        `ServerGoneError` from all that reads or changes a shard until then.
        """
        ...


class Worker(Protocol):
    """One worker: programs, datasets, and one closure at a time."""

    def register_program(self, spec: ProgramSpec) -> None:
        """Takes a program; compiles it now or when it is first run."""
        ...

    def make_dataset(self, dataset_id: int, dataset_fn: Callable[[], Any]) -> DatasetSpec:
        """Calls `dataset_fn` on the worker and keeps what it returns.

        Returns:
            What an element looks like.
        """
        ...

    def make_iterator(self, iterator_id: int, dataset_id: int) -> None:
        """Starts a pass over a dataset."""
        ...

    def run(self, call: ClosureCall) -> ClosureReply | OtherShapes:
        """Reads, computes and stages; never commits. Waits until what it staged is there.

        Raises:
            WorkerGoneError: This worker is gone.
            ServerGoneError: A server that it needs is gone.
            FencedError: The attempt was given up meanwhile.
            BaseException: What went wrong in the closure itself, with the worker's traceback.
        """
        ...


class Transport(Protocol):
    """Workers and servers, wherever they are.

    Attributes:
        servers: The servers, by number.
        workers: The workers, by number; one that is gone keeps its number.
    """

    servers: Sequence[Server]
    workers: Sequence[Worker]

    def watch(self, listener: Listener) -> None:
        """Tells `listener` of workers and servers that come and go, from a thread of its own."""
        ...

    def close(self) -> None:
        """Ends everything that the transport has started; does nothing the second time."""
        ...


class Listener(Protocol):
    """Who wants to know of workers and servers: the coordinator."""

    def worker_joined(self, index: int) -> None:
        """``transport.workers[index]`` is new, or is there again without programs and datasets."""
        ...

    def worker_lost(self, index: int, reason: str) -> None:
        """A worker is gone; its `run` raises `WorkerGoneError` within seconds."""
        ...

    def server_lost(self, index: int, reason: str) -> None:
        """A server is gone, with all it held."""
        ...

    def server_joined(self, index: int) -> None:
        """``transport.servers[index]`` is there again, and waits for `Server.restore`."""
        ...

    def task_is_slow(self, what: str, seconds: float) -> None:
        """Somebody has not moved for so long: a sentence about who, and on what."""
        ...


class StartTransport(Protocol):
    """Starts a transport; what ``ParameterServerStrategy(transport=...)`` may be given."""

    def __call__(self, *, num_workers: int, num_servers: int) -> Transport:
        """A transport with so many workers and servers, ready to be used."""
        ...
