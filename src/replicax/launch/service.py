"""JAX's coordination service beside the workers, so that it outlives each of them.

Where worker 0 has the service, JAX ends every worker when worker 0 is lost. Here it is in a
process of its own: what workers that were killed leave of it cannot block the launcher, which
kills it as well and has a new one for the next attempt.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from replicax.backend.joining import COORDINATION_VARIABLE
from replicax.cluster import addresses as host_addresses
from replicax.cluster.addresses import Address
from replicax.core.errors import ClusterPlatformError
from replicax.launch import exit_codes

READY = b"ready\n"
_MODULE = "replicax.launch.service_process"
_START_SECONDS = 60.0
_SILENT_SECONDS = 7.0
_ASKED_SECONDS = 1.0
_MAX_TRIES = 3  # another process may take a free port before the service does


class CoordinationService:
    """A `Coordination` that runs JAX's coordination service.

    It listens at one interface only. One worker needs none.

    Args:
        host: The address of this machine at which it listens; that of worker 0 if None.

    Example:
        >>> service = CoordinationService()
        >>> service.start(["127.0.0.1:5000"], attempt=1)
        {}
        >>> service.stop()
    """

    def __init__(self, host: str | None = None) -> None:
        self._host = host
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""
        self._heard_at = self._asked_at = 0.0

    @property
    def pid(self) -> int | None:
        """The process that has the service; None if there is none."""
        return None if self._process is None else self._process.pid

    def start(self, addresses: Sequence[str], *, attempt: int) -> Mapping[str, str]:
        """Starts a service for the workers at `addresses`; returns where they find it.

        Raises:
            ClusterPlatformError: If it does not start.
        """
        if len(addresses) < 2:
            return {}
        host = self._host or host_addresses.parse_address(addresses[0]).host
        ip = host_addresses.resolve_host(host)[0]
        trouble = ""
        for _ in range(_MAX_TRIES):
            self.stop()
            port = host_addresses.free_port(ip)
            trouble = self._try(Address(ip, port), len(addresses))
            if not trouble:
                self._address = str(Address(host, port))
                self._heard_at = self._asked_at = time.monotonic()
                return {COORDINATION_VARIABLE: str(Address(host, port))}
        raise ClusterPlatformError(
            f"the coordination service for the workers does not start at {ip}: {trouble}"
        )

    def _try(self, address: Address, num_workers: int) -> str:
        """Why there is no service at `address`; empty if there is one."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE, str(address), str(num_workers)],
            stdin=subprocess.PIPE,  # its end tells the service that the launcher is gone
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
        )
        output = self._process.stdout
        assert output is not None
        end = time.monotonic() + _START_SECONDS
        said = b""
        while not said.endswith(READY):
            left = max(end - time.monotonic(), 0.0)
            if not select.select([output], [], [], left)[0]:
                return f"it was not ready within {_START_SECONDS:g} s."
            data = output.read(65536)
            if not data:
                return said.decode(errors="replace").strip()[-2000:] or "it ended at once."
            said += data
        return ""

    def trouble(self) -> str:
        """Why the workers cannot go on with the service; empty while they can.

        To be called again and again: silence counts while somebody listens.
        """
        if self._process is None:
            return ""
        name = f"the coordination service at {self._address} (process {self._process.pid})"
        code = self._process.poll()
        if code is not None:
            return f"{name} has ended: {exit_codes.describe(code)}."
        now = time.monotonic()
        assert self._process.stdout is not None
        is_heard = bool(select.select([self._process.stdout], [], [], 0.0)[0])
        if is_heard:
            self._process.stdout.read(65536)
        if is_heard or now - self._asked_at > _ASKED_SECONDS:  # this process was stopped as well
            self._heard_at = now
        self._asked_at = now
        if now - self._heard_at <= _SILENT_SECONDS:
            return ""
        return (
            f"{name} does not answer for {_SILENT_SECONDS:g} s: it is stopped, or the machine is "
            "too busy. Without it the workers cannot tell who is alive."
        )

    def stop(self) -> None:
        """Kills the service, in whatever state the workers have left it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
