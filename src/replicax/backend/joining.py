"""How a process joins the other workers of a cluster, and how it leaves them.

Joining comes before JAX starts, once in the life of a process. Leaving is what needs care: JAX
ends a worker that cannot disconnect properly, and others want to know how this one ended.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import jax

from replicax.backend import workers
from replicax.backend.relay import Relay
from replicax.backend.workers import Workers
from replicax.core.errors import DeviceError, WorkerLostError
from replicax.jax_internals.processes import (
    connect_to_coordination,
    coordination_client,
    forget_coordination,
    has_started,
    leave_coordination,
    use_gloo_at,
)

DEFAULT_TIMEOUT_SECONDS = 10.0

COORDINATION_VARIABLE = "REPLICAX_COORDINATION_ADDRESS"
"""Names the address of a coordination service that outlives the workers, if a launcher has one."""

HEARTBEAT_SECONDS = 24 * 3600
"""Of JAX, which ends a worker without a word when one is missed: `Workers` has beats of its own."""

_COLLECTIVE_TIMEOUT_FLAG = "--xla_cpu_collective_timeout_seconds"


def join(
    addresses: Sequence[str],
    rank: int,
    *,
    names: Sequence[str],
    host: str,
    timeout_seconds: float,
    start_seconds: float,
) -> Workers:
    """Joins the other workers; a process does it once, before JAX starts.

    Args:
        addresses: Of all workers, by rank; the coordination service is at the first one.
        rank: Which of them this process is.
        names: What messages call them.
        host: The IP address of this worker, at which all of its listeners are.
        timeout_seconds: How long a worker may be silent, and a collective may wait for it.
        start_seconds: How long to wait for the coordination service.

    Raises:
        DeviceError: If JAX has started already.
    """
    require_not_started()
    limit_collectives(timeout_seconds)
    jax.config.update("jax_enable_recoverability", True)  # or JAX ends all when one has gone
    jax.config.update("jax_enable_preemption_service", False)  # SIGTERM ends a worker, as usual
    service = os.environ.get(COORDINATION_VARIABLE)
    relay = None
    if service or rank != 0:
        relay = Relay(service or addresses[0], start_seconds=start_seconds)
        connect_to_coordination(
            relay.address,
            len(addresses),
            rank,
            heartbeat_seconds=HEARTBEAT_SECONDS,
            start_seconds=int(start_seconds),
        )
    else:
        jax.distributed.initialize(
            coordinator_address=addresses[0],
            num_processes=len(addresses),
            process_id=rank,
            cluster_detection_method="deactivate",
            initialization_timeout=int(start_seconds),
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            coordinator_bind_address=_at(host, addresses[0]),
        )
    use_gloo_at(host)
    group = Workers(rank, names, timeout_seconds, service_rank=None if service else 0, relay=relay)
    workers.set_current(group)
    atexit.register(_leave, group)
    _note_errors()
    return group


def _at(host: str, address: str) -> str:
    """`host` with the port of `address`: a name may stand for further interfaces."""
    port = address.rpartition(":")[2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def require_not_started() -> None:
    """Raises if it is too late to join.

    Raises:
        DeviceError: If JAX has started already.
    """
    if has_started():
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
# The worker that has the service leaves last, also after an error of its own: the others read there
# how it ended. They disconnect only if the service has just answered. If it goes in that moment,
# their relays keep JAX from ending them. Nothing waits for a worker that has gone.

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
    if coordination_client() is None:
        return
    told = group.end(_last_beat)
    if group.service_rank == group.rank:
        # After an error, as long as the others need to notice.
        patience = workers.MEETING_SECONDS
        if _last_beat != workers.ENDED:
            patience = group.timeout_seconds + workers.SILENT_SECONDS
        with contextlib.suppress(Exception):
            group.await_others(patience)
    elif told:
        group.aside.within(workers.GOODBYE_SECONDS, leave_coordination)
    forget_coordination()
