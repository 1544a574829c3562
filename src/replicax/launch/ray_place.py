"""Workers on the nodes of a Ray cluster, each in the hands of an actor.

Ray finds nodes with room, starts the actors there and says when one is gone. It restarts and
retries nothing: the run decides that, for all workers together.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from replicax.core.errors import ClusterPlatformError
from replicax.launch.interruption import Interruption
from replicax.launch.plan import WorkerPlan
from replicax.launch.ray_actor import PYTHON, WorkerActor
from replicax.ray_cluster.session import LOCAL, Session

_FORWARDED = ("JAX_", "XLA_", "REPLICAX_")
"""The variables of the launcher that workers get, by how their names begin."""

_FOLLOW_SECONDS = 0.5
_SILENT_SECONDS = 10.0
_END_SECONDS = 5.0
_TURN_SECONDS = 0.2
_CONCURRENCY = 4  # calls of an actor at a time: to follow, to signal, to end
_CHUNK = 65536


class RayPlace:
    """A `Place` on Ray: one actor for each worker, in one placement group.

    Args:
        address: The cluster, as `Session` has it; ``local`` is one of this machine's own.
        num_workers: How many workers the job has.
        resources: What Ray keeps for each worker, by name, as ``{"CPU": 1.0}``.
        interruption: Ends every wait.
        start_seconds: How long to wait for room in the cluster.

    Raises:
        ImportError: If Ray is not installed.
        ClusterPlatformError: If there is no connection to the cluster.

    Example:
        >>> place = RayPlace("local", num_workers=2)  # doctest: +SKIP
        >>> place.reserve(2)  # doctest: +SKIP
        ('127.0.0.1:35207', '127.0.0.1:41693')
    """

    def __init__(
        self,
        address: str = LOCAL,
        *,
        num_workers: int,
        resources: Mapping[str, float] | None = None,
        interruption: Interruption | None = None,
        start_seconds: float = 300.0,
    ) -> None:
        self._resources = {"CPU": 1.0} | dict(resources or {})
        self._interruption = interruption or Interruption()
        self._start_seconds = start_seconds
        self._actors: list[Any] = []
        self._session = Session(
            address,
            num_cpus=max(round(num_workers * self._resources["CPU"]), 1),
            is_cancelled=lambda: self._interruption.count > 0,
        )
        self._ray = self._session.ray
        self._group = self._ray.util.placement_group(
            [self._resources] * num_workers, strategy="SPREAD"
        )

    @property
    def host(self) -> str:
        """The address of this machine at which the nodes reach it."""
        return str(self._ray.util.get_node_ip_address())

    @property
    def environment(self) -> Mapping[str, str]:
        """Those of JAX, of XLA and of Replicax; a worker has its node's variables beside them."""
        return {n: v for n, v in os.environ.items() if n.startswith(_FORWARDED)}

    def reserve(self, num_workers: int) -> tuple[str, ...] | None:
        """Starts an actor for each worker, and asks each for an address.

        Raises:
            ClusterPlatformError: If the cluster has no room in time, or an actor does not start.
        """
        end = time.monotonic() + self._start_seconds
        self._forget_actors()
        self._actors = [self._actor(index) for index in range(num_workers)]
        asked = [actor.reserve.remote() for actor in self._actors]
        while True:
            if self._interruption.count:
                return None
            _, waiting = self._ray.wait(asked, num_returns=num_workers, timeout=_TURN_SECONDS)
            if not waiting:
                break
            if time.monotonic() > end:
                raise ClusterPlatformError(
                    f"Ray has not started {len(waiting)} of {num_workers} workers, each with "
                    f"{_written(self._resources)}, within {self._start_seconds:g} s. Free in the "
                    f"cluster: {_written(self._ray.available_resources())}, of "
                    f"{_written(self._ray.cluster_resources())}. Ask for less, or add nodes."
                )
        try:
            return tuple(self._ray.get(asked))
        except self._ray.exceptions.RayError as error:
            raise ClusterPlatformError(
                f"a worker did not start on Ray: {_last_line(error)}. Every node needs Replicax "
                "with the same versions as here."
            ) from error

    def _actor(self, index: int) -> Any:
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=index
        )
        others = {n: v for n, v in self._resources.items() if n not in ("CPU", "GPU")}
        actor = self._ray.remote(_NodeActor).options(
            num_cpus=self._resources["CPU"],
            num_gpus=self._resources.get("GPU", 0),
            resources=others,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=_CONCURRENCY,
            scheduling_strategy=strategy,
        )
        return actor.remote()

    def start(self, plan: WorkerPlan) -> RayWorker:
        """Starts the program on the node of its actor.

        Raises:
            ClusterPlatformError: If it cannot be started there.
        """
        command = tuple(PYTHON if part == sys.executable else part for part in plan.command)
        there = WorkerPlan(plan.worker_id, command, plan.environment)
        actor = self._actors[plan.worker_id]
        try:
            pid = self._ray.get(actor.start.remote(there, os.getcwd()), timeout=_SILENT_SECONDS)
        except self._ray.exceptions.RayError as error:
            raise ClusterPlatformError(
                f"{plan.name} cannot be started on its node: {_last_line(error)}"
            ) from error
        return RayWorker(self._ray, actor, plan.worker_id, pid)

    def close(self) -> None:
        """Ends the actors, gives their room back and leaves the cluster."""
        try:
            self._forget_actors()
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.util.remove_placement_group(self._group)
        finally:
            self._session.close()

    def _forget_actors(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor, no_restart=True)
        self._actors = []


class _NodeActor(WorkerActor):
    """A `WorkerActor` that asks Ray for the address of its node."""

    def __init__(self) -> None:
        import ray

        super().__init__(str(ray.util.get_node_ip_address()))


class RayWorker:
    """A `StartedWorker` in the hands of an actor, which a thread asks for its output all the time.

    An actor that is gone, or does not answer, is a worker that was killed.

    Args:
        ray: The library.
        actor: What runs the worker.
        worker_id: Its number in the cluster.
        pid: Its process, on its node.

    Example:
        >>> issubclass(RayWorker, object)
        True
    """

    def __init__(self, ray: Any, actor: Any, worker_id: int, pid: int) -> None:
        self.worker_id = worker_id
        self.pid = pid
        self._ray = ray
        self._actor = actor
        self._code: int | None = None
        self._is_ended = False
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._thread = threading.Thread(
            target=self._follow, daemon=True, name=f"output of worker {worker_id}"
        )
        self._thread.start()

    def fileno(self) -> int:
        """The pipe into which the thread writes."""
        return self._reading

    def read(self) -> bytes | None:
        """What it has written since; empty at the end, None if there is nothing yet."""
        try:
            return os.read(self._reading, _CHUNK)
        except BlockingIOError:
            return None

    def poll(self) -> int | None:
        """Its return code if it has ended and all of its output has come."""
        return self._code

    def signal(self, number: int) -> None:
        """Sends a signal to the process on its node; does not wait for it."""
        if self._code is None:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._actor.signal.remote(number)

    def end(self) -> int:
        """Kills what is left on its node, and the actor."""
        if not self._is_ended:
            self._is_ended = True
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.get(self._actor.end.remote(), timeout=_END_SECONDS)
            self._ray.kill(self._actor, no_restart=True)
            os.close(self._reading)  # a thread that writes meets its end
            self._thread.join(_END_SECONDS)
        return -signal.SIGKILL if self._code is None else self._code

    def _follow(self) -> None:
        code = None
        with contextlib.suppress(BrokenPipeError), open(self._writing, "wb", buffering=0) as pipe:
            while code is None and not self._is_ended:
                data, code = self._ask()
                pipe.write(data)
        self._code = code

    def _ask(self) -> tuple[bytes, int | None]:
        try:
            call = self._actor.follow.remote(_FOLLOW_SECONDS)
            return self._ray.get(call, timeout=_SILENT_SECONDS)
        except self._ray.exceptions.GetTimeoutError:
            why = f"its actor does not answer for {_SILENT_SECONDS:g} s"
            self._ray.kill(self._actor, no_restart=True)
        except self._ray.exceptions.RayError as error:
            why = f"its actor is gone: {_last_line(error)}"
        return f"worker {self.worker_id} is lost: {why}\n".encode(), -signal.SIGKILL


def _written(resources: Mapping[str, float]) -> str:
    named = {n: v for n, v in resources.items() if ":" not in n and "_group_" not in n}
    return ", ".join(f"{name}={value:g}" for name, value in sorted(named.items())) or "nothing"


def _last_line(error: BaseException) -> str:
    return str(error).strip().rpartition("\n")[2]
