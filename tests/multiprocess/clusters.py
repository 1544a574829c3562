"""Starts the workers of a cluster on this machine, the same program in each, and waits for them."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from replicax.cluster.addresses import free_ports
from replicax.launch.plan import device_environment
from tests.backend.fresh_process import SETUP_VARIABLES
from tests.tiers import full_only

REPOSITORY = pathlib.Path(__file__).parents[2]

LAYOUTS = {"2x1": (2, 1), "2x2": (2, 2), "3x1": (3, 1), "3x2": (3, 2)}
"""Workers, and devices of each."""

QUICK_LAYOUT = "2x2"
EACH_LAYOUT = [name if name == QUICK_LAYOUT else full_only(name) for name in LAYOUTS]


# What this test process has set up for itself, and workers must not inherit. Nor the compilation
# cache: JAX writes an entry in place, and a worker that is killed would leave half of one for ever.
OWN_VARIABLES = {*SETUP_VARIABLES, "JAX_COMPILATION_CACHE_DIR", "TF_CONFIG"}


def environment(num_devices, **variables):
    """What a worker inherits, with so many virtual CPU devices; `variables` are added."""
    kept = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
    path = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    devices = device_environment(num_devices, {})
    return kept | devices | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"} | variables


def places(num_workers):
    """The variable that tells each worker of a new cluster on this machine its place."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(num_workers)]}
    tasks = [{"type": "worker", "index": rank} for rank in range(num_workers)]
    return [{"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})} for task in tasks]


@dataclasses.dataclass(frozen=True)
class Ended:
    """How one worker ended.

    Attributes:
        code: Its exit code; negative for a signal.
        output: All that it printed.
    """

    code: int
    output: str


class Workers:
    """Running workers; their process groups are killed at the end of the block.

    Args:
        command: What each worker runs, with the same Python.
        num_workers: How many there are.
        num_devices: Virtual CPU devices of each.
        folder: Where their output goes.
        variables: What is added to the environment of all.
    """

    def __init__(self, command, num_workers, num_devices, folder, **variables):
        self._folder = folder
        self.processes = []
        inherited = environment(num_devices, **variables)
        for worker_id, place in enumerate(places(num_workers)):
            # Of their own: several processes of pytest clean up in one folder, and then warn.
            temporary = folder / f"temporary-{worker_id}"
            temporary.mkdir(exist_ok=True)
            with open(self._output_of(worker_id), "wb") as output:
                process = subprocess.Popen(
                    [sys.executable, *command],
                    env=inherited | place | {"TMPDIR": str(temporary)},
                    cwd=REPOSITORY,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self.processes.append(process)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _output_of(self, worker_id):
        return self._folder / f"worker-{worker_id}.txt"

    def output(self, worker_id):
        """What a worker has printed so far."""
        return self._output_of(worker_id).read_text(errors="replace")

    def wait(self, seconds):
        """How each worker ended; whoever has not ended in time is shown in the error."""
        deadline = time.monotonic() + seconds
        for worker_id, process in enumerate(self.processes):
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                shown = "\n".join(
                    f"--- worker {i}\n{self.output(i)[-3000:]}" for i in range(len(self.processes))
                )
                raise AssertionError(
                    f"worker {worker_id} has not ended after {seconds} s.\n{shown}"
                ) from None
        return [
            Ended(process.returncode, self.output(worker_id))
            for worker_id, process in enumerate(self.processes)
        ]


def run_workers(command, num_workers, num_devices, folder, *, seconds, **variables):
    """Runs the workers to their end, which must come within `seconds`."""
    with Workers(command, num_workers, num_devices, folder, **variables) as workers:
        return workers.wait(seconds)


def require_success(ended):
    """Fails with the output of the workers that did not end well."""
    for worker_id, worker in enumerate(ended):
        assert worker.code == 0, f"worker {worker_id} ended with {worker.code}:\n{worker.output}"
