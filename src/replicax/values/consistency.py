"""Keeps values that come from the host the same on all workers.

Inside programs the engine knows what is equal everywhere. A value that user code makes on the
host it does not: every worker has its own, and a random one, or one that was read from a file,
may be another on each.
"""

from __future__ import annotations

from typing import Any

from replicax.backend import workers
from replicax.backend.digests import digest
from replicax.backend.mesh import ReplicaMesh
from replicax.jax_internals.traces import outside_traces
from replicax.values.distributed import PerReplica
from replicax.values.reduce import first_component


def from_first_worker(value: Any, name: str, mesh: ReplicaMesh | None) -> Any:
    """The initial value of a variable that worker 0 has, on every worker.

    Raises:
        WorkersDifferError: If the workers create different variables.
    """
    if mesh is None or not mesh.spans_workers:
        return value
    group = workers.require()
    what = f"the creation of variable {name!r}"
    digests = group.agree(
        what,
        [list(value.shape), str(value.dtype)],
        "Create the same variables in the same order on all workers.",
        beside=digest(value),
    )
    if len(set(digests)) == 1:  # usual: made from the same seed
        return value
    with outside_traces():
        here = [value] * len(mesh.local_replicas)
        shapes = [tuple(value.shape)] * mesh.num_replicas
        return first_component(PerReplica(mesh, components=here, shapes=shapes))


def require_same(value: Any, what: str, mesh: ReplicaMesh | None) -> None:
    """Refuses to give the copies of a variable a value that other workers do not have.

    Raises:
        WorkersDifferError: If it differs.
    """
    if mesh is not None and mesh.spans_workers:
        workers.require().agree(
            what,
            digest(value),
            "The copies of the variable would drift apart. Assign a value that is the same on all "
            "workers, such as the result of strategy.reduce; local results are not.",
        )
