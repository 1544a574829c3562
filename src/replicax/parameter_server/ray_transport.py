"""Servers and workers as processes that Ray starts, on one machine or several.

Ray finds room for the processes and ends them. Calls and arrays go over our own connections
(`calls`, `wire`); Ray carries what has to be pickled. It restarts and retries nothing: either would
lose updates, or apply them twice, without an error. A task that ends or falls silent is noticed
here, killed, and started anew; what that means for closures and variables, the coordinator decides.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from replicax.core.errors import ClusterPlatformError
from replicax.parameter_server import wire
from replicax.parameter_server.calls import ServerStub, WorkerStub
from replicax.parameter_server.encoding import MessageError
from replicax.parameter_server.messages import (
    ClosureCall,
    ClosureReply,
    DatasetSpec,
    OptimizerSpec,
    OtherShapes,
)
from replicax.parameter_server.ray_task import ServerTask, TaskAddress, WorkerTask
from replicax.parameter_server.transport import Listener, Server, TaskGoneError, Worker
from replicax.ray_cluster.session import Session

_BEAT_SECONDS = 0.5
_SILENT_SECONDS = 8.0
_ANSWER_SECONDS = 3.0
_LOOK_SECONDS = 1.0
_BUSY_SECONDS = 60.0  # for one of this machine that runs, and gets no processor
_SLOW_SECONDS = 60.0
_START_SECONDS = 120.0
_AGAIN_SECONDS = 5.0
_CONCURRENCY = 4
_STOPPED = ("T", "t")
_FORWARDED = ("JAX_", "XLA_", "REPLICAX_")


class PlacedTask:
    """The actor of a server or worker.

    Attributes:
        actor: The actor; None while there is none.
        address: Where it listens.
        pid: Its process, on its node.
        bundle: Its place in the placement group.
        is_first: Whether it is the first that was started there.
    """

    def __init__(self, ray: Any, bundle: int) -> None:
        self.ray = ray
        self.bundle = bundle
        self.actor: Any = None
        self.address: TaskAddress | None = None
        self.pid = 0
        self.is_first = True

    def ask(self, gone: Callable[[str], TaskGoneError], method: str, *arguments: Any) -> Any:
        """What the actor returns of a call that Ray carries."""
        actor = self.actor
        if actor is None:
            raise gone("it has not started again")
        try:
            return self.ray.get(getattr(actor, method).remote(*arguments))
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause
            cause.add_note(str(error))
            raise cause from None
        except self.ray.exceptions.RayError as error:
            raise gone(str(error).strip().partition("\n")[0]) from error

    def is_here(self) -> bool:
        """Whether the process is on this machine."""
        address = self.address
        return address is not None and address[0] == self.ray.util.get_node_ip_address()

    def kill(self) -> None:
        """Ends the process, also one that is stopped."""
        if self.actor is None:
            return
        self.ray.kill(self.actor, no_restart=True)
        if self.is_here():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)  # one that is stopped does not hear Ray
        self.actor = None


class PlacedServer(ServerStub):
    """A server on Ray.

    Attributes:
        placed: Its actor.
    """

    def __init__(self, index: int, token: bytes, placed: PlacedTask) -> None:
        super().__init__(index, token)
        self.placed = placed

    def register_optimizer(self, spec: OptimizerSpec) -> None:
        """See `transport.Server.register_optimizer`."""
        self.placed.ask(self.gone_because, "register_optimizer", spec)


class PlacedWorker(WorkerStub):
    """A worker on Ray.

    Attributes:
        placed: Its actor.
        running: The closure that it runs, and since when.
    """

    def __init__(self, index: int, token: bytes, placed: PlacedTask) -> None:
        super().__init__(index, token)
        self.placed = placed
        self.running: tuple[int, float] | None = None

    def make_dataset(self, dataset_id: int, dataset_fn: Callable[[], Any]) -> DatasetSpec:
        """See `transport.Worker.make_dataset`."""
        return self.placed.ask(self.gone_because, "make_dataset", dataset_id, dataset_fn)

    def run(self, call: ClosureCall) -> ClosureReply | OtherShapes:
        """See `transport.Worker.run`."""
        self.running = call.attempt.closure, time.monotonic()
        try:
            return super().run(call)
        finally:
            self.running = None


class RayTransport:
    """Implements `transport.Transport` on Ray.

    A program that is connected to Ray uses that cluster. Otherwise there is one on this machine,
    which listens on loopback only and ends with the transport.

    Args:
        num_workers: How many workers to start.
        num_servers: How many servers to start.

    Attributes:
        servers: The servers.
        workers: The workers.

    Raises:
        ImportError: If Ray is not installed.
        ClusterPlatformError: If there is no cluster, or no room in it.
    """

    def __init__(self, *, num_workers: int, num_servers: int) -> None:
        count = num_workers + num_servers
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._listener: Listener | None = None
        self._untold: list[tuple[str, tuple[Any, ...]]] = []  # while nobody listens
        self._watches: list[threading.Thread] = []
        self._token = secrets.token_bytes(32)
        self._session = Session(num_cpus=count)
        self._ray = self._session.ray
        self._group: Any = None
        try:
            self._group = self._ray.util.placement_group([{"CPU": 1}] * count, strategy="SPREAD")
            placed = [PlacedTask(self._ray, bundle) for bundle in range(count)]
            self._servers = [PlacedServer(i, self._token, placed[i]) for i in range(num_servers)]
            self._workers = [
                PlacedWorker(i, self._token, placed[num_servers + i]) for i in range(num_workers)
            ]
            self.servers: Sequence[Server] = self._servers
            self.workers: Sequence[Worker] = self._workers
            self._start(self._servers)
            self._start(self._workers)
            self._start_watches()
        except BaseException:
            self.close()
            raise

    # -- starting ------------------------------------------------------------------------------

    def _start(self, tasks: Sequence[PlacedServer | PlacedWorker]) -> None:
        """Starts an actor for each task, all at once, and waits for them."""
        calls = []
        for task in tasks:
            task.placed.actor = self._actor_of(task)
            calls.append(task.placed.actor.place.remote())
        try:
            places = self._ray.get(calls, timeout=_START_SECONDS)
        except self._ray.exceptions.RayError as error:
            for task in tasks:
                task.placed.kill()
            raise ClusterPlatformError(
                f"Ray has not started {', '.join(task.name for task in tasks)} within "
                f"{_START_SECONDS:g} s: {str(error).strip().rpartition(chr(10))[2]}. Each needs a "
                f"CPU; the cluster has {self._ray.cluster_resources().get('CPU', 0):g}."
            ) from error
        for task, (host, port, pid) in zip(tasks, places, strict=True):
            task.placed.address, task.placed.pid = (host, port), pid
            task.placed.is_first = False
            task.found_at(host, port)

    def _actor_of(self, task: PlacedServer | PlacedWorker) -> Any:
        variables = {n: v for n, v in os.environ.items() if n.startswith(_FORWARDED)}
        variables["JAX_NUM_CPU_DEVICES"] = "1"
        if isinstance(task, PlacedServer):
            variables["JAX_PLATFORMS"] = "cpu"
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=task.placed.bundle
        )
        options = {
            "num_cpus": 1,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": _CONCURRENCY,
            "runtime_env": {"env_vars": variables},
            "scheduling_strategy": strategy,
        }
        if isinstance(task, PlacedServer):
            replaces = None if task.placed.is_first else task.index
            return self._ray.remote(ServerOnNode).options(**options).remote(self._token, replaces)
        actor = self._ray.remote(WorkerOnNode).options(**options)
        return actor.remote(self._token, task.index, self._addresses())

    def _addresses(self) -> list[TaskAddress | None]:
        """Where the servers are now."""
        return [server.placed.address for server in self._servers]

    # -- watching ------------------------------------------------------------------------------

    def watch(self, listener: Listener) -> None:
        """Tells `listener` of tasks that are lost, that are there again, and that are slow.

        What happened before anybody listened it hears now.
        """
        with self._lock:
            self._listener = listener
            untold, self._untold = self._untold, []
            for method, arguments in untold:
                self._listener_told(method, *arguments)

    def _start_watches(self) -> None:
        for task in (*self._servers, *self._workers):
            watch = threading.Thread(
                target=self._watch, args=(task,), daemon=True, name=f"watch of {task.name}"
            )
            self._watches.append(watch)
            watch.start()

    def _watch(self, task: PlacedServer | PlacedWorker) -> None:
        while not self._closed.is_set():
            reason = self._beats_end(task)
            if self._closed.is_set():
                return
            self._lose(task, reason)
            while not self._closed.is_set():
                try:
                    self._start_again(task)
                    break
                except (ClusterPlatformError, self._ray.exceptions.RayError) as error:
                    self._listener_told("task_is_slow", f"{task.name} does not start: {error}", 0.0)
                    self._closed.wait(_AGAIN_SECONDS)

    def _beats_end(self, task: PlacedServer | PlacedWorker) -> str:
        """Returns when the task does not answer any more, with the reason.

        With every beat a worker is told where the servers are: so the last word that it hears is
        the newest, also if it starts while a server is replaced.
        """
        told = None
        silent = "it does not answer (stopped, cut off, or far too busy)"
        try:
            beats = self._connected(task)
            if beats is None:
                return silent
            with contextlib.closing(beats):
                while not self._closed.wait(_BEAT_SECONDS):
                    is_worker = isinstance(task, PlacedWorker)
                    beats.send(["ping", self._addresses()] if is_worker else ["ping"])
                    since = time.monotonic()
                    while not beats.is_answered(_LOOK_SECONDS):
                        if self._is_given_up(task, since):
                            return silent
                    beats.receive()
                    running = getattr(task, "running", None)
                    if running is not None and running[0] != told:
                        seconds = time.monotonic() - running[1]
                        if seconds > _SLOW_SECONDS:
                            told = running[0]
                            what = f"{task.name} is still running closure {told}"
                            self._listener_told("task_is_slow", what, seconds)
            return "the transport is closed"
        except (OSError, MessageError) as error:
            return f"its process has ended ({error})"

    def _connected(self, task: PlacedServer | PlacedWorker) -> wire.Wire | None:
        """A connection for the beats; None if nobody answers."""
        address = task.placed.address
        assert address is not None
        since = time.monotonic()
        while True:
            try:
                return wire.connect(*address, self._token, seconds=_ANSWER_SECONDS)
            except TimeoutError:
                if self._is_given_up(task, since):
                    return None

    def _is_given_up(self, task: PlacedServer | PlacedWorker, since: float) -> bool:
        """Whether one that is alive would have answered by now."""
        silent = time.monotonic() - since
        is_here = task.placed.is_here()
        if self._closed.is_set() or silent > (_BUSY_SECONDS if is_here else _SILENT_SECONDS):
            return True
        return is_here and state_of(task.placed.pid) in _STOPPED

    def _lose(self, task: PlacedServer | PlacedWorker, reason: str) -> None:
        task.placed.kill()
        task.placed.address = None
        task.lost(reason)
        if isinstance(task, PlacedServer):
            self._listener_told("server_lost", task.index, f"{task.name} is gone: {reason}.")
        else:
            self._listener_told("worker_lost", task.index, f"{task.name} is gone: {reason}.")

    def _start_again(self, task: PlacedServer | PlacedWorker) -> None:
        self._start([task])
        if self._closed.is_set():
            task.placed.kill()
        elif isinstance(task, PlacedServer):
            self._listener_told("server_joined", task.index)
        else:
            self._listener_told("worker_joined", task.index)

    def _listener_told(self, method: str, *arguments: Any) -> None:
        with self._lock:  # in the order in which it happened
            if self._listener is None:
                self._untold.append((method, arguments))
            elif not self._closed.is_set():
                getattr(self._listener, method)(*arguments)

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends all tasks, and the cluster if it was started for them."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        for task in (*getattr(self, "_servers", ()), *getattr(self, "_workers", ())):
            task.lost("the transport is closed")
            with contextlib.suppress(self._ray.exceptions.RayError):
                task.placed.kill()
        for watch in self._watches:
            watch.join(_START_SECONDS)
        if self._group is not None:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.util.remove_placement_group(self._group)
        self._session.close()


def state_of(pid: int) -> str:
    """The letter that Linux has for the state of a process of this machine; empty without one.

    Example:
        >>> state_of(os.getpid())
        'R'
    """
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]


class ServerOnNode(ServerTask):
    """A `ServerTask` that listens at the address of its node."""

    def __init__(self, token: bytes, replaces: int | None) -> None:
        super().__init__(_node_address(), token, replaces)


class WorkerOnNode(WorkerTask):
    """A `WorkerTask` that listens at the address of its node."""

    def __init__(self, token: bytes, index: int, servers: Sequence[TaskAddress | None]) -> None:
        super().__init__(_node_address(), token, index, servers)


def _node_address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())
