"""Runs a function on every replica as ordinary Python: the eager executor.

One replica runs where the caller is; several run on threads, one at a time, and meet (`peers`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from replicax.backend import placement, workers
from replicax.core import nest
from replicax.engine.contexts import stack
from replicax.engine.contexts.replica import ReplicaContext
from replicax.engine.eager.peers import EagerPeers, EagerSession
from replicax.engine.eager.solo import EagerSoloPeers, SoloPeers
from replicax.engine.protocols import StrategyLike
from replicax.engine.threads import ReplicaThreads
from replicax.engine.trace import epoch
from replicax.jax_internals.traces import capture_thread_state
from replicax.values.distributed import ComponentView
from replicax.values.leaves import Leaf, leaf_kind
from replicax.values.regroup import regroup, select, selected


def run_eagerly(
    strategy: StrategyLike, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Runs `fn` once on each replica of this worker, in replica order; merges the results."""
    _check_fit((args, kwargs))
    if strategy.num_replicas_in_sync == 1:
        return _run_alone(strategy, fn, args, kwargs)
    return _run_on_threads(strategy, fn, args, kwargs)


def _run_alone(
    strategy: StrategyLike, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    extended = strategy.extended
    peers = SoloPeers if extended._is_default else EagerSoloPeers
    context = ReplicaContext._of(strategy, peers(strategy))
    args, kwargs = select((args, kwargs), 0)
    try:
        with (
            epoch.eager_run(),
            stack.entered(stack.Entry(strategy, stack.Mode.REPLICA, context)),
            jax.default_device(extended.mesh.devices[0]),
            epoch.replica_token(0),
        ):
            result = fn(*args, **kwargs)
    finally:
        context._end()
    return without_views(result)


def _run_on_threads(
    strategy: StrategyLike, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    extended = strategy.extended
    mesh, local = extended.mesh, extended.mesh.local_replicas
    threads = extended._threads
    if threads is None:
        threads = extended._threads = ReplicaThreads(len(local), local.start)
    session = EagerSession(strategy, mesh, threads, extended._reduction)
    leaves, structure = nest.flatten((args, kwargs))
    session.remember(leaves)
    contexts = {
        replica_id: ReplicaContext._of(strategy, EagerPeers(session, replica_id), replica_id)
        for replica_id in local
    }
    surroundings = capture_thread_state()

    def task(replica_id: int) -> Any:
        own = [selected(leaf, replica_id) for leaf in leaves]
        own_args, own_kwargs = nest.unflatten(structure, own)
        entry = stack.Entry(strategy, stack.Mode.REPLICA, contexts[replica_id])
        with (
            surroundings(),
            stack.replaced_by(entry),
            jax.default_device(mesh.devices[replica_id]),
            epoch.replica_token(replica_id),
        ):
            return fn(*own_args, **own_kwargs)

    with workers.told_of_failures(mesh), epoch.eager_run():
        try:
            results = threads.run([lambda i=i: task(i) for i in local])
        finally:
            for context in contexts.values():
                context._end()
        return regroup(
            results,
            mesh,
            find_mirrored=session.find_mirrored,
            arguments=set(map(id, leaves)),
            shared=session.shared,
        )


def _check_fit(arguments: Any) -> None:
    """Refuses 64-bit arrays that JAX would truncate as soon as they are used.

    And values of which a part is deleted, which JAX would refuse without their names.
    """
    for path, leaf in nest.leaves_with_path(arguments):
        name = f"the argument of run at {path}"
        values: Sequence[Any] = (leaf,)
        match leaf_kind(leaf):
            case Leaf.PER_REPLICA:
                leaf._refuse_deleted(name)
                values = leaf._parts()
            case Leaf.MIRRORED:
                leaf._refuse_deleted(name)
                values = (leaf.read_value(),)
        for value in values:
            if leaf_kind(value) in (Leaf.HOST_ARRAY, Leaf.JAX_ARRAY, Leaf.TRACER):
                placement.narrowed(value, name)


def without_views(result: Any) -> Any:
    """`result` with every copy of a variable replaced by the variable."""

    def merged(leaf: Any) -> Any:
        if isinstance(leaf, ComponentView) and leaf._owner is not None:
            return leaf._owner
        return leaf

    return nest.map_leaves(merged, result)
