"""A training program in which one of the workers has an accident, and workers to watch."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from tests.multiprocess.clusters import places

WAIT_SECONDS = 100.0
"""No worker of a test may take longer, start included."""

# Worker RANK meets with ACCIDENT at step STEP: FAULT says which, as a list. The step has been
# launched then, and has not been awaited. READ is how the training looks at its variables.
TRAIN = """
import json, os, signal, sys
import jax, jax.numpy as jnp, numpy as np
import replicax as rx

timeout = float(os.environ["TIMEOUT"])
options = rx.experimental.CommunicationOptions(timeout_seconds=timeout)
strategy = rx.MultiWorkerMirroredStrategy(communication_options=options)
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
victim, fault_step, accident = json.loads(os.environ.get("FAULT", "[-1, -1, null]"))

with strategy.scope():
    w = rx.Variable(np.zeros(5, np.float32), aggregation=rx.VariableAggregation.MEAN)
    n = rx.Variable(0.0, aggregation=rx.VariableAggregation.MEAN)

@rx.function
def step(number):
    context = rx.get_replica_context()
    key = jax.random.fold_in(jax.random.key(7), number)
    key = jax.random.fold_in(key, context.replica_id_in_sync_group)
    x = jax.random.normal(key, (8, 5))
    y = x @ jnp.arange(5.0)
    gradient = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(jnp.asarray(w))
    w.assign(w - 0.05 * context.all_reduce(rx.ReduceOp.MEAN, gradient))
    n.assign(n + 1)
    return context.all_reduce(rx.ReduceOp.MEAN, jnp.sum(gradient))

READS = {
    "numpy": lambda total: w.numpy(),
    "asarray": lambda total: np.asarray(w),
    "float": lambda total: float(n),
    "mirrored": lambda total: float(total),
    "repr": lambda total: repr(total),
    "repr of a variable": lambda total: repr(w),  # never raises: the next step does
}
read = READS[os.environ.get("READ", "numpy")]
print("started", flush=True)
for number in range(1000000):
    total = strategy.run(step, args=(np.int32(number),))
    if (rank, number) == (victim, fault_step):
        print("accident", accident, "at", number, flush=True)
        if accident == "raise":
            raise ValueError("a mistake of the user")
        if accident == "end":
            sys.exit(0)
        os.kill(os.getpid(), getattr(signal, accident))
    read(total)
    if number == 0:
        print("stepping", flush=True)
"""

# Worker 1 has told the others that it ends; LEAVING is what happens before it has disconnected.
LEAVE = """
import os, time
import replicax as rx
from replicax.backend import joining

options = rx.experimental.CommunicationOptions(timeout_seconds=float(os.environ["TIMEOUT"]))
strategy = rx.MultiWorkerMirroredStrategy(communication_options=options)
leave = joining.leave_coordination

def leave_late():
    print("leaving", flush=True)
    if os.environ["LEAVING"] == "late":
        time.sleep(1.5)
    else:
        os._exit(3)
    leave()

joining.leave_coordination = leave_late
"""


def program(folder: pathlib.Path, source: str = TRAIN) -> pathlib.Path:
    """The file of a program."""
    path = folder / "train.py"
    path.write_text(source)
    return path


@dataclasses.dataclass(frozen=True)
class Ending:
    """How one worker ended.

    Attributes:
        code: Its exit code; negative for a signal.
        lines: All that it printed.
        times: When each line came.
        at: When it ended, as `time.monotonic` counts.
    """

    code: int
    lines: list[str]
    times: list[float]
    at: float

    def last(self, text: str) -> tuple[str, float]:
        """The last line that has `text` in it, and when it came."""
        found = [pair for pair in zip(self.lines, self.times, strict=True) if text in pair[0]]
        assert found, "\n".join(self.lines[-60:])
        return found[-1]


class Worker:
    """One process whose output is read while it runs."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self.lines: list[str] = []
        self._times: list[float] = []
        self._ended: Ending | None = None
        self._process = subprocess.Popen(
            command,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._times.append(time.monotonic())
            self.lines.append(line.rstrip("\n"))
        code = self._process.wait()
        self._ended = Ending(code, self.lines, self._times, time.monotonic())

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def await_line(self, beginning: str) -> str:
        """Waits until it has printed such a line."""
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            for line in list(self.lines):
                if line.startswith(beginning):
                    return line
            assert self._ended is None, self.text
            time.sleep(0.02)
        raise AssertionError(f"no line {beginning!r} in:\n{self.text}")

    def signal(self, number: int) -> None:
        """Sends it a signal."""
        os.killpg(self._process.pid, number)

    def end(self, seconds: float = WAIT_SECONDS) -> Ending:
        """Waits for its end."""
        self._reader.join(seconds)
        assert self._ended is not None, f"no end after {seconds} s:\n{self.text}"
        return self._ended

    @property
    def text(self) -> str:
        """Its output so far."""
        return "\n".join(self.lines[-60:])

    def kill(self) -> None:
        """Kills what is left of it."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._reader.join(WAIT_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


def start_workers(
    path: pathlib.Path, num_workers: int, variables: Mapping[str, str]
) -> list[Worker]:
    """Starts all workers of a cluster on the loopback interface, without a launcher."""
    command = [sys.executable, str(path)]
    return [Worker(command, {**variables, **place}) for place in places(num_workers)]
