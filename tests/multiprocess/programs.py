"""Training programs for several workers in which one of them has an accident, and their start."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from replicax.cluster.addresses import free_ports
from replicax.launch.plan import device_environment
from tests.backend.fresh_process import ROOT, SETUP_VARIABLES

WAIT_SECONDS = 50.0
"""No worker of a test may take longer, start included."""

# Worker RANK of attempt ATTEMPT meets with ACCIDENT at step STEP: each row of FAULTS says one.
# The step has been launched then, and has not been awaited.
TRAIN = """
import json, os, pathlib, signal, sys
import jax, jax.numpy as jnp, numpy as np
import replicax as rx

timeout = float(os.environ.get("TIMEOUT", "3"))
options = rx.experimental.CommunicationOptions(timeout_seconds=timeout)
strategy = rx.MultiWorkerMirroredStrategy(communication_options=options)
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
attempt = int(os.environ.get("REPLICAX_ATTEMPT", "1"))
faults = {(a, r): (s, what) for a, r, s, what in json.loads(os.environ.get("FAULTS", "[]"))}
num_steps = int(os.environ.get("STEPS", "1000000"))
saved = pathlib.Path(os.environ["SAVED"]) if "SAVED" in os.environ else None

first, weights, momentum = 0, np.zeros(5, np.float32), np.zeros(5, np.float32)
if saved is not None and saved.exists():
    with np.load(saved) as state:
        first, weights, momentum = int(state["step"]), state["weights"], state["momentum"]

with strategy.scope():
    kind = {"aggregation": rx.VariableAggregation.MEAN}
    w, m = rx.Variable(weights, **kind), rx.Variable(momentum, **kind)

@rx.function
def step(number):
    def replica(number):
        context = rx.get_replica_context()
        key = jax.random.fold_in(jax.random.key(7), number)
        key = jax.random.fold_in(key, context.replica_id_in_sync_group)
        x = jax.random.normal(key, (8, 5))
        y = x @ jnp.arange(5.0)
        gradient = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(jnp.asarray(w))
        m.assign(0.9 * m + context.all_reduce(rx.ReduceOp.MEAN, gradient))
        w.assign(w - 0.05 * m)
    strategy.run(replica, args=(number,))

def save(number):
    part = saved.with_suffix(".part")
    with part.open("wb") as file:
        np.savez(file, step=number, weights=w.numpy(), momentum=m.numpy())
    part.replace(saved)

print("started", flush=True)
for number in range(first, num_steps):
    step(np.int32(number))
    fault_step, accident = faults.get((attempt, rank), (None, None))
    if number == fault_step:
        print("accident", accident, "at", number, flush=True)
        if accident == "raise":
            raise ValueError("a mistake of the user")
        if accident == "end":
            sys.exit(0)
        os.kill(os.getpid(), getattr(signal, accident))
    w.numpy()
    if saved is not None and strategy.is_chief:
        save(number + 1)
    if number == first:
        print("stepping", flush=True)
print("weights", w.numpy().tobytes().hex(), flush=True)
"""


def program(folder: pathlib.Path) -> pathlib.Path:
    """The file of the training program."""
    path = folder / "train.py"
    path.write_text(TRAIN)
    return path


def environment(num_devices: int = 1, **variables: object) -> dict[str, str]:
    """What workers inherit: nothing of this test process's own devices."""
    kept = {name: value for name, value in os.environ.items() if name not in SETUP_VARIABLES}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    given = {name.upper(): _text(value) for name, value in variables.items()}
    devices = device_environment(num_devices, {})
    return kept | devices | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"} | given


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, list) else str(value)


@dataclasses.dataclass(frozen=True)
class Ended:
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
        self._ended: Ended | None = None
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
        self._ended = Ended(code, self.lines, self._times, time.monotonic())

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

    def end(self, seconds: float = WAIT_SECONDS) -> Ended:
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
    addresses = [f"127.0.0.1:{port}" for port in free_ports(num_workers)]
    workers = []
    for rank in range(num_workers):
        task = {"type": "worker", "index": rank}
        config = json.dumps({"cluster": {"worker": addresses}, "task": task})
        workers.append(Worker([sys.executable, str(path)], {**variables, "TF_CONFIG": config}))
    return workers
