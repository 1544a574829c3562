"""A Ray cluster on this machine that nobody else can reach, and of which nothing is left.

What `ray.init()` starts by itself listens on all interfaces, has a token that every user of the
machine can read, and stays for a while when the program is killed.
"""

from __future__ import annotations

import os
import pathlib
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Self

from replicax.core.errors import ClusterPlatformError
from replicax.core.extras import require_extra

LOOPBACK = "127.0.0.1"
KEEPER = pathlib.Path(__file__).with_name("keeper_process.py")

_OBJECT_STORE_BYTES = 100 * 2**20  # arrays do not travel by it
_START_SECONDS = 300.0
_END_SECONDS = 30.0
_PATIENCE = {"RAY_raylet_start_wait_time_s": f"{_START_SECONDS:.0f}"}  # Ray gives up after 30
_LOOK_SECONDS = 0.05
_LONGEST_FOLDER = 40  # a socket of Ray has a path of 107 letters at most, and Ray adds about 65


class LocalCluster:
    """Ray on the loopback interface of this machine, until `close` or the end of this process.

    Its processes, its files and what its workers started are gone afterwards, also when this
    process is killed. Connections need a token, in a file that only this user can read.

    Args:
        num_cpus: How many CPUs Ray may give away, whatever the machine has.
        is_cancelled: Ends the start when it becomes true.

    Raises:
        ImportError: If Ray is not installed.
        ClusterPlatformError: If Ray does not start.

    Example:
        >>> with LocalCluster(num_cpus=1) as cluster:  # doctest: +SKIP
        ...     cluster.address
        '127.0.0.1:37123'
    """

    def __init__(self, *, num_cpus: int, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        require_extra("ray", user="a cluster of Ray", extra="ray")
        self._folder = _make_folder()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it outlives the folder
        token = self._folder / "token"
        with open(os.open(token, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        self.environment: Mapping[str, str] = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # without it Ray listens everywhere
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self._keeper = self._start(num_cpus)
        try:
            self.address = self._wait(is_cancelled)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process that keeps the cluster."""
        return self._keeper.pid

    def close(self) -> None:
        """Kills all processes of the cluster, and deletes its files."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        try:
            self._keeper.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # it was stopped
            self._keeper.kill()
            self._keeper.wait()
        self._log.close()

    def _start(self, num_cpus: int) -> subprocess.Popen[bytes]:
        inherited = {n: v for n, v in os.environ.items() if not n.startswith("RAY_")}
        command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start"]
        command += ["--head", "--block", "--node-ip-address", LOOPBACK, "--port", "0"]
        command += ["--temp-dir", str(self._folder / "ray"), "--num-cpus", str(num_cpus)]
        command += ["--object-store-memory", str(_OBJECT_STORE_BYTES)]
        command += ["--include-dashboard", "false", "--disable-usage-stats"]
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(KEEPER), str(self._folder), *command],
            env=inherited | dict(self.environment) | _PATIENCE,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _wait(self, is_cancelled: Callable[[], bool]) -> str:
        end = time.monotonic() + _START_SECONDS
        address = self._folder / "ray" / "ray_current_cluster"  # written when all has started
        while time.monotonic() < end and self._keeper.poll() is None:
            if is_cancelled():
                raise ClusterPlatformError("the start of Ray was interrupted.")
            if address.exists() and (text := address.read_text().strip()):
                return text
            time.sleep(_LOOK_SECONDS)
        ended = self._keeper.poll() is not None
        self._log.seek(0)
        said = self._log.read().decode(errors="replace")[-2000:]
        raise ClusterPlatformError(
            f"Ray {'ended while it started' if ended else 'did not start'} on this machine"
            f"{'' if ended else f' within {_START_SECONDS:g} s'}. It said:\n{said.strip()}"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _make_folder() -> pathlib.Path:
    parent = tempfile.gettempdir()
    if len(parent) > _LONGEST_FOLDER - len("/rx-ray-12345678"):
        parent = "/tmp"
    return pathlib.Path(tempfile.mkdtemp(prefix="rx-ray-", dir=parent))
