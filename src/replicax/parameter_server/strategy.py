"""`ParameterServerStrategy`: variables on servers, closures on workers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from replicax.backend import devices
from replicax.core.errors import ClusterError
from replicax.core.options import RunOptions
from replicax.engine.contexts import stack
from replicax.engine.contexts.replica import ReplicaContext
from replicax.engine.eager.solo import SoloPeers
from replicax.engine.protocols import CompiledCallable, StrategyLike
from replicax.parameter_server.cluster import OnServers, Partition, ServerCluster
from replicax.parameter_server.embedded import EmbeddedTransport
from replicax.parameter_server.optimizing import ServerOptimizers
from replicax.parameter_server.ray_transport import RayTransport
from replicax.parameter_server.storage import ServerStorage
from replicax.parameter_server.tracing import require_closure
from replicax.parameter_server.transport import StartTransport
from replicax.parameter_server.variables import ServerVariable
from replicax.strategies.base import Strategy
from replicax.strategies.extended import StrategyExtended
from replicax.variables import construction
from replicax.variables.colocation import asked_primary, colocated_on
from replicax.variables.variable import Variable

TRANSPORTS: dict[str, StartTransport] = {"embedded": EmbeddedTransport, "ray": RayTransport}


class ParameterServerExtended(StrategyExtended):
    """One replica on each worker; variables on servers.

    Attributes:
        cluster: The servers.
        coordinator: The coordinator of the strategy, once there is one.
    """

    def __init__(
        self,
        container_strategy: StrategyLike,
        cluster_resolver: Any,
        partitioner: Partition | None,
        start: Any,
    ) -> None:
        """Starts a transport for the tasks that `cluster_resolver` names."""
        super().__init__(container_strategy)
        self.set_replica_devices(devices.local_devices()[:1])
        self.cluster_resolver = cluster_resolver
        spec = cluster_resolver.cluster_spec()
        counts = {job: _num_tasks(spec, job) for job in ("worker", "ps")}
        missing = [job for job, count in counts.items() if not count]
        if missing:
            raise ClusterError(
                f"ParameterServerStrategy needs at least one worker and one ps task; {spec!r} has "
                f"no {' and no '.join(missing)}."
            )
        transport = start(num_workers=counts["worker"], num_servers=counts["ps"])
        self.cluster = ServerCluster(transport, partitioner)
        self._optimizers = ServerOptimizers(container_strategy, self.cluster)
        self.coordinator: Any = None

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The tasks that run closures."""
        return tuple(f"/job:worker/task:{i}" for i in range(len(self.cluster.transport.workers)))

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The tasks that hold variables."""
        return tuple(f"/job:ps/task:{i}" for i in range(self.cluster.num_servers))

    def create_variable(self, **options: Any) -> Variable:
        """A variable on a server, or cut into shards on several, as the partitioner says.

        Args:
            **options: The arguments of ``Variable``, by name.

        Returns:
            The variable.
        """
        options.pop("partition_dimensions", None)
        return construction.build(
            lambda storage: ServerVariable,
            strategy=self._container_strategy,
            storage_of=functools.partial(self.cluster.storage, asked_primary()),
            **options,
        )

    def close(self) -> None:
        """Ends the coordinator, and the workers and servers that the strategy has started."""
        if self.coordinator is not None:
            self.coordinator.close()
        self.cluster.transport.close()

    def apply_gradients(self, optimizer: Any, grads_and_vars: Any) -> bool:
        """Lets the servers update the variables, when the closure is done.

        Args:
            optimizer: The `Optimizer`.
            grads_and_vars: Pairs of a gradient, or a `RowGradient`, and its variable.

        Returns:
            True.

        Raises:
            ContextError: If no closure is being traced.
            VariableError: If the transformation cannot be done on servers.
        """
        self._optimizers.apply(optimizer, grads_and_vars)
        return True

    def non_slot_devices(self, var_list: Sequence[Any]) -> Any:
        """The servers of `var_list`, each of which updates a copy of its own; all if it is empty.

        Args:
            var_list: The variables that the optimizer updates.

        Returns:
            What `colocate_vars_with` takes.
        """
        found = {
            shard.server
            for variable in var_list
            if isinstance(storage := variable._storage, ServerStorage)
            for shard in storage.shards
        }
        return OnServers(tuple(sorted(found)) or tuple(range(self.cluster.num_servers)))

    @contextlib.contextmanager
    def colocate_vars_with(self, colocate_with_variable: Any) -> Iterator[None]:
        """Variables created inside are on the servers of `colocate_with_variable`.

        Args:
            colocate_with_variable: A variable of this strategy, or what
                `non_slot_devices` returned.

        Returns:
            A context manager.
        """
        if isinstance(colocate_with_variable, OnServers):
            with colocated_on(None, colocate_with_variable):
                yield
            return
        with super().colocate_vars_with(colocate_with_variable):
            yield

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: RunOptions | None,
    ) -> Any:
        """Runs `fn` in replica context on the worker that runs the closure.

        Args:
            fn: The function.
            args: Its arguments.
            kwargs: The same by keyword.
            options: Ignored: there is one replica.

        Returns:
            What `fn` returns.

        Raises:
            ContextError: If no closure is being traced: a coordinator must schedule it.
            TypeError: If `fn` is not callable.
        """
        del options
        strategy = self._container_strategy
        require_closure(strategy, "Strategy.run")
        if not callable(fn):
            raise TypeError(f"Strategy.run needs a callable as fn; got {fn!r}.")
        function: Any = fn
        if isinstance(fn, CompiledCallable):
            function = fn.python_function
        context = ReplicaContext._of(strategy, SoloPeers(strategy))
        try:
            with stack.entered(stack.Entry(strategy, stack.Mode.REPLICA, context)):
                return function(*args, **kwargs)
        finally:
            context._end()


class ParameterServerStrategy(Strategy):
    """Keeps variables on parameter servers; workers do not wait for each other.

    Create variables in its ``scope()``, and pass functions to a `ClusterCoordinator`, which lets
    the workers call them.

    Args:
        cluster_resolver: Names the tasks: at least one ``ps`` and one ``worker``.
        variable_partitioner: Says into how many shards a variable is cut, from its shape and dtype;
            None for variables that are whole. See ``experimental.partitioners``.
        transport: How workers and servers are reached: ``"embedded"`` for threads of this process,
            ``"ray"`` for processes that Ray starts, or a function that starts one. Neither uses the
            addresses of `cluster_resolver`.

    Raises:
        ClusterError: If there is no ``ps`` or no ``worker`` task.
        ValueError: If there is no such transport.

    Example:
        >>> import replicax as rx
        >>> cluster = rx.cluster_resolver.SimpleClusterResolver(
        ...     {"ps": ["a:1", "a:2"], "worker": ["b:1", "b:2", "b:3"]})
        >>> strategy = rx.ParameterServerStrategy(cluster)
        >>> strategy.extended.parameter_devices
        ('/job:ps/task:0', '/job:ps/task:1')
        >>> with strategy.scope():
        ...     v = rx.Variable([1.0, 2.0])
        >>> v.assign_add([1.0, 1.0]).numpy()
        array([2., 3.], dtype=float32)
    """

    _extended: ParameterServerExtended

    def __init__(
        self,
        cluster_resolver: Any,
        variable_partitioner: Partition | None = None,
        *,
        transport: str | StartTransport = "embedded",
    ) -> None:
        start = TRANSPORTS.get(transport) if isinstance(transport, str) else transport
        if start is None or not callable(start):
            raise ValueError(
                f"transport is {transport!r}; expected one of {sorted(TRANSPORTS)}, or a function "
                "that starts one."
            )
        if not callable(getattr(cluster_resolver, "cluster_spec", None)):
            raise TypeError(
                f"ParameterServerStrategy needs a cluster resolver, with cluster_spec(); got "
                f"{cluster_resolver!r}. For this process alone: SimpleClusterResolver({{'ps': "
                "['localhost:1'], 'worker': ['localhost:2']}})."
            )
        super().__init__(
            ParameterServerExtended(self, cluster_resolver, variable_partitioner, start)
        )

    @property
    def extended(self) -> ParameterServerExtended:
        """Methods for libraries."""
        return self._extended

    def __repr__(self) -> str:
        workers, servers = len(self.extended.worker_devices), self.extended.cluster.num_servers
        return f"<{type(self).__name__}: {workers} workers, {servers} parameter servers>"


def _num_tasks(spec: Any, job: str) -> int:
    return spec.num_tasks(job) if job in spec.jobs else 0
