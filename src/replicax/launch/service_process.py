"""The process that `service` runs: JAX's coordination service, until the launcher is gone."""

from __future__ import annotations

import os
import signal
import sys

from replicax.backend import compat

# Workers notice a lost one by themselves, and sooner. A worker that the service calls lost is
# ended by JAX before it can say anything.
_HEARTBEAT_SECONDS = 600
_SHUTDOWN_SECONDS = 5


def main(address: str, num_workers: int) -> None:
    """Serves at `address` until the end of standard input, then ends without a goodbye."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the launcher ends it, after the workers
    service = compat.start_coordination_service(
        address,
        num_workers,
        heartbeat_seconds=_HEARTBEAT_SECONDS,
        shutdown_seconds=_SHUTDOWN_SECONDS,
    )
    os.write(1, b"ready\n")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # nobody reads them from now on
        os.dup2(nowhere, stream)
    while os.read(0, 4096):
        pass
    os._exit(0 if service else 1)  # its own shutdown would wait for workers


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
