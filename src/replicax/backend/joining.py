"""How a process joins the other workers of a cluster, and how it leaves them.

Joining comes before JAX starts, once in the life of a process. Leaving is what needs care: JAX
ends a worker that disconnects while the service is gone, and one whose service disappears.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import jax

from replicax.backend import compat, workers
from replicax.backend.workers import Workers
from replicax.core.errors import DeviceError, WorkerLostError

DEFAULT_TIMEOUT_SECONDS = 10.0

COORDINATION_VARIABLE = "REPLICAX_COORDINATION_ADDRESS"
"""Names the address of a coordination service that outlives the workers, if a launcher has one."""

_HEARTBEAT_MARGIN_SECONDS = 30  # JAX ends a worker after half of it, which has said why by then
_COLLECTIVE_TIMEOUT_FLAG = "--xla_cpu_collective_timeout_seconds"


def join(
    addresses: Sequence[str],
    rank: int,
    *,
    names: Sequence[str],
    timeout_seconds: float,
    start_seconds: float,
) -> Workers:
    """Joins the other workers; a process does it once, before JAX starts.

    Args:
        addresses: Of all workers, by rank; the coordination service is at the first one.
        rank: Which of them this process is.
        names: What messages call them.
        timeout_seconds: How long a worker may be silent, and a collective may wait for it.
        start_seconds: How long to wait for the coordination service.

    Raises:
        DeviceError: If JAX has started already.
    """
    require_not_started()
    limit_collectives(timeout_seconds)
    jax.config.update("jax_enable_recoverability", True)  # or JAX ends all when one has gone
    jax.config.update("jax_enable_preemption_service", False)  # SIGTERM ends a worker, as usual
    heartbeat = 2 * round(timeout_seconds) + _HEARTBEAT_MARGIN_SECONDS
    service = os.environ.get(COORDINATION_VARIABLE)
    if service:
        compat.connect_to_coordination(
            service,
            len(addresses),
            rank,
            heartbeat_seconds=heartbeat,
            start_seconds=int(start_seconds),
        )
    else:
        jax.distributed.initialize(
            coordinator_address=addresses[0],
            num_processes=len(addresses),
            process_id=rank,
            cluster_detection_method="deactivate",
            initialization_timeout=int(start_seconds),
            heartbeat_timeout_seconds=heartbeat,
            coordinator_bind_address=addresses[0],
        )
    group = Workers(rank, names, timeout_seconds, service_rank=None if service else 0)
    workers.set_current(group)
    atexit.register(_leave, group)
    _note_errors()
    return group


def require_not_started() -> None:
    """Raises if it is too late to join.

    Raises:
        DeviceError: If JAX has started already.
    """
    if compat.has_started():
        raise DeviceError(
            "MultiWorkerMirroredStrategy was created after JAX had started, when it cannot join "
            "other processes any more. Create it first in the program, before any array, "
            "jax.devices() or other strategy is made."
        )


def limit_collectives(timeout_seconds: float) -> None:
    """Makes collectives of the CPU backend fail when a worker does not come; before JAX starts."""
    flags = os.environ.get("XLA_FLAGS", "")
    if _COLLECTIVE_TIMEOUT_FLAG not in flags:
        seconds = max(round(timeout_seconds), 1)
        os.environ["XLA_FLAGS"] = f"{flags} {_COLLECTIVE_TIMEOUT_FLAG}={seconds}".strip()


# -- leaving -----------------------------------------------------------------------------------
# JAX ends a worker that disconnects while the service is gone, and one whose service disappears.
# So a worker disconnects only if the service has just answered, and the one that has the service
# leaves last, also after an error of its own. Nothing waits for a worker that has gone.

_last_beat = workers.ENDED


def _note_errors() -> None:
    previous = sys.excepthook

    def hook(kind: Any, error: BaseException, trace: Any) -> None:
        global _last_beat
        lost = workers.lost_worker(error)
        _last_beat = (
            workers.BEREFT if lost or isinstance(error, WorkerLostError) else workers.FAILED
        )
        if lost is not None:  # an error that came past all that could translate it
            lost.__cause__ = error
            kind, error, trace = type(lost), lost, None
        previous(kind, error, trace)

    sys.excepthook = hook


def _leave(group: Workers) -> None:
    if compat.coordination_client() is None:
        return
    told = group.end(_last_beat)
    if group.service_rank == group.rank:
        # After an error, as long as the others need to notice.
        patience = workers.MEETING_SECONDS
        if _last_beat != workers.ENDED:
            patience = group.timeout_seconds + workers.SILENT_SECONDS
        with contextlib.suppress(Exception):
            group.await_others(patience)
            group.await_disconnections()
    elif told:
        workers.within(workers.GOODBYE_SECONDS, compat.leave_coordination)
    compat.forget_coordination()
