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

REPOSITORY = pathlib.Path(__file__).parents[2]


def _inherited_path():
    return [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []


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
        environment: Variables for all.
    """

    def __init__(self, command, num_workers, num_devices, folder, environment=None):
        self._folder = folder
        addresses = [f"127.0.0.1:{port}" for port in free_ports(num_workers)]
        self.processes = []
        for worker_id in range(num_workers):
            config = {
                "cluster": {"worker": addresses},
                "task": {"type": "worker", "index": worker_id},
            }
            variables = {
                **os.environ,
                "TF_CONFIG": json.dumps(config),
                "JAX_PLATFORMS": "cpu",
                "JAX_NUM_CPU_DEVICES": str(num_devices),
                "NPROC": str(4 * num_devices),
                "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *_inherited_path()]),
                "PYTHONUNBUFFERED": "1",
                **(environment or {}),
            }
            with open(self._output_of(worker_id), "wb") as output:
                process = subprocess.Popen(
                    [sys.executable, *command],
                    env=variables,
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


def run_workers(command, num_workers, num_devices, folder, *, seconds, environment=None):
    """Runs the workers to their end, which must come within `seconds`."""
    with Workers(command, num_workers, num_devices, folder, environment) as workers:
        return workers.wait(seconds)


def require_success(ended):
    """Fails with the output of the workers that did not end well."""
    for worker_id, worker in enumerate(ended):
        assert worker.code == 0, f"worker {worker_id} ended with {worker.code}:\n{worker.output}"
