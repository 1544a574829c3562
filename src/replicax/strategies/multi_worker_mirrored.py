"""`MultiWorkerMirroredStrategy`: replicas on the devices of several workers, variables mirrored."""

from __future__ import annotations

import contextlib
from typing import Any

import jax

from replicax.backend import devices, joining, workers
from replicax.backend.collectives import Reduction
from replicax.backend.mesh import replica_mesh
from replicax.backend.workers import Workers
from replicax.cluster import arrival, detection, roles
from replicax.cluster.addresses import own_ip
from replicax.cluster.resolver import ClusterResolver
from replicax.cluster.roles import Task
from replicax.core.errors import ClusterError
from replicax.core.options import CommunicationImplementation, CommunicationOptions
from replicax.core.sharding import Sharding
from replicax.engine.protocols import StrategyLike
from replicax.input.topology import InputTopology
from replicax.strategies.base import Strategy
from replicax.strategies.extended import StrategyExtended


class MultiWorkerMirroredExtended(StrategyExtended):
    """Replicas on the devices of all workers of a cluster."""

    def __init__(
        self,
        container_strategy: StrategyLike,
        resolver: ClusterResolver,
        options: CommunicationOptions,
        sharding: Sharding | None,
    ) -> None:
        """Joins the workers that `resolver` knows."""
        super().__init__(container_strategy)
        self.cluster_resolver = resolver
        self._tasks, self._worker_id = _place_of(resolver)
        self._workers = self._join(options)
        self._set_mesh()
        self._check_implementation(options.implementation)
        self._reduction = Reduction(
            bytes_per_pack=options.bytes_per_pack, ordered=options.deterministic
        )
        self.set_sharding(sharding)

    def _join(self, options: CommunicationOptions) -> Workers | None:
        joined = workers.current()
        if len(self._tasks) < 2:
            return None
        names = [str(task) for task in self._tasks]
        if joined is not None:
            if (joined.rank, list(joined.names)) != (self._worker_id, names):
                raise ClusterError(
                    f"this process has joined the cluster of {', '.join(joined.names)} as "
                    f"{joined.names[joined.rank]}, and cannot join another one: "
                    f"{', '.join(names)}."
                )
            return joined
        joining.require_not_started()
        addresses = [task.address for task in self._tasks]
        seconds = arrival.start_seconds()
        host = own_ip(addresses, self._worker_id)
        arrival.meet(
            addresses,
            self._worker_id,
            names=names,
            host=host,
            facts=arrival.own_facts(),
            seconds=seconds,
        )
        return joining.join(
            addresses,
            self._worker_id,
            names=names,
            host=host,
            timeout_seconds=options.timeout_seconds or joining.DEFAULT_TIMEOUT_SECONDS,
            start_seconds=seconds,
        )

    def _set_mesh(self) -> None:
        local = devices.local_devices()
        if self._workers is None:
            self._mesh = replica_mesh(local)
            return
        self._workers.agree(
            "the devices of a worker",
            [local[0].platform, len(local)],
            "Give every worker devices of the same kind, and as many.",
        )
        everywhere = jax.devices(local[0].platform)
        self._mesh = replica_mesh(tuple(sorted(everywhere, key=lambda d: (d.process_index, d.id))))

    def _check_implementation(self, implementation: CommunicationImplementation) -> None:
        platform = self.mesh.devices[0].platform
        if implementation is CommunicationImplementation.NCCL and platform != "gpu":
            raise ValueError(
                f"CommunicationImplementation.NCCL needs GPUs; the devices are of platform "
                f"{platform!r}. Use CommunicationImplementation.AUTO."
            )
        if implementation is CommunicationImplementation.RING and platform != "cpu":
            raise ValueError(
                "CommunicationImplementation.RING is the library for CPUs; the devices are of "
                f"platform {platform!r}. Use CommunicationImplementation.AUTO."
            )

    # -- what a strategy is ------------------------------------------------------------------

    @property
    def _num_workers(self) -> int:
        """How many workers there are."""
        return max(len(self._tasks), 1)

    @property
    def _is_chief(self) -> bool:
        """Whether this worker speaks for all."""
        return self._worker_id == 0

    @property
    def experimental_between_graph(self) -> bool:
        """Whether every worker builds the program for itself: yes."""
        return True

    @property
    def should_checkpoint(self) -> bool:
        """Whether this worker saves checkpoints: the chief only."""
        return self._is_chief

    @property
    def should_save_summary(self) -> bool:
        """Whether this worker writes summaries: the chief only."""
        return self._is_chief

    @property
    def _input_topology(self) -> InputTopology:
        """The workers that read input, and the replicas each of them feeds."""
        exchange = None if self._workers is None else self._workers.exchange
        return InputTopology(
            num_workers=self._num_workers,
            worker_id=self._worker_id,
            replicas_per_worker=len(self.mesh.local_replicas),
            exchange=exchange,
        )


def _place_of(resolver: ClusterResolver) -> tuple[list[Task], int]:
    """The workers that train together with this process, and which of them it is.

    A ``ps`` or an evaluator is alone, and so is the only process of an empty cluster.
    """
    cluster = resolver.cluster_spec()
    task_type, task_id = resolver.task_type, resolver.task_id
    if not cluster or not roles.takes_part(task_type):
        return [], 0
    roles.check_cluster(cluster)
    tasks = roles.ranked_tasks(cluster)
    if task_type is None:
        if len(tasks) > 1:
            raise ClusterError(
                f"the cluster has {len(tasks)} workers, and nothing says which of them this "
                "process is. Set 'task' in TF_CONFIG, or task_type and task_id of the resolver."
            )
        return tasks, 0
    return tasks, roles.id_in_cluster(cluster, task_type, 0 if task_id is None else task_id)


class MultiWorkerMirroredStrategy(Strategy):
    """Trains on the devices of several workers, in step.

    Every worker runs the same program. Each variable created in its scope has one
    copy per replica on every worker, with the initial value of worker 0, and the
    copies are kept equal. Create it first in the program: it joins the other workers.

    Args:
        cluster_resolver: What knows the cluster; what the platform says, first of all
            the variable ``TF_CONFIG``, if None.
        communication_options: Hints for collectives, and how long to wait for a worker.
        sharding: As of ``MirroredStrategy``: what is split over the replicas of all workers.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MultiWorkerMirroredStrategy()  # without TF_CONFIG: one worker
        >>> strategy.is_chief, strategy.num_replicas_in_sync
        (True, 8)
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        communication_options: CommunicationOptions | None = None,
        *,
        sharding: Sharding | None = None,
    ) -> None:
        """A strategy of the workers that `cluster_resolver` knows."""
        options = communication_options or CommunicationOptions()
        if not isinstance(options, CommunicationOptions):
            raise TypeError(
                f"communication_options is {options!r}; expected a CommunicationOptions."
            )
        resolver = detection.detect() if cluster_resolver is None else cluster_resolver
        super().__init__(MultiWorkerMirroredExtended(self, resolver, options, sharding))

    def scope(self) -> contextlib.AbstractContextManager[Strategy]:
        """As `Strategy.scope`; inside, eager arrays go to this worker's first CPU device."""
        if self.extended.mesh.devices[0].platform == "cpu":
            return super().scope()
        return _ScopeOnHost(super().scope())


class _ScopeOnHost(contextlib.AbstractContextManager[Strategy]):
    """A scope with the CPU as JAX's default device; can be entered again."""

    def __init__(self, scope: contextlib.AbstractContextManager[Strategy]) -> None:
        self._scope = scope
        self._entered: list[contextlib.ExitStack] = []

    def __enter__(self) -> Strategy:
        with contextlib.ExitStack() as entering:
            strategy = entering.enter_context(self._scope)
            host = jax.local_devices(backend="cpu")[0]
            entering.enter_context(jax.default_device(host))
            self._entered.append(entering.pop_all())
        return strategy

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().__exit__(*error)


class ExperimentalMultiWorkerMirroredStrategy(MultiWorkerMirroredStrategy):
    """`MultiWorkerMirroredStrategy` with the arguments that it had under ``experimental``.

    Args:
        communication: Which library carries the collectives.
        cluster_resolver: What knows the cluster; what the platform says if None.

    Example:
        >>> import replicax as rx
        >>> rx.experimental.MultiWorkerMirroredStrategy().num_replicas_in_sync
        8
    """

    def __init__(
        self,
        communication: CommunicationImplementation = CommunicationImplementation.AUTO,
        cluster_resolver: ClusterResolver | None = None,
    ) -> None:
        """A strategy of the workers that `cluster_resolver` knows."""
        super().__init__(cluster_resolver, CommunicationOptions(implementation=communication))
