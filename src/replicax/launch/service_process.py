"""The process that `service` runs: JAX's coordination service, until the launcher is gone."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys

from replicax.backend.joining import HEARTBEAT_SECONDS
from replicax.jax_internals.processes import start_coordination_service

_SHUTDOWN_SECONDS = 5

BEAT_SECONDS = 0.5


def main(address: str, num_workers: int) -> None:
    """Serves at `address` until the end of standard input, then ends without a goodbye.

    It writes a byte to standard output again and again, so that the launcher notices when it
    is stopped: the workers would wait, and after a while JAX would end them without a reason.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the launcher ends it, after the workers
    service = start_coordination_service(
        address,
        num_workers,
        heartbeat_seconds=HEARTBEAT_SECONDS,
        shutdown_seconds=_SHUTDOWN_SECONDS,
    )
    os.write(1, b"ready\n")
    beats = os.dup(1)
    os.set_blocking(beats, False)  # a launcher that is stopped does not read them
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # nobody reads what JAX says from now on
        os.dup2(nowhere, stream)
    while not select.select([0], [], [], BEAT_SECONDS)[0] or os.read(0, 4096):
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(beats, b".")
    os._exit(0 if service else 1)  # its own shutdown would wait for workers


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
