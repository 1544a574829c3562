"""Training on Ray while its processes are killed and stopped: what must hold afterwards.

``python -m tests.parameter_server.faults --seeds 0 10`` makes ten runs on one cluster of Ray, with
a line of figures for each, and then looks for what is left on this machine.

A run schedules 1,000 closures on 2 servers and 3 workers. Between some of them a random process is
killed, or stopped. Every closure adds to an element of its own on each server: a one, which must be
there once, and a number that no other attempt has, which must be the same on both servers.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import random
import signal
import threading
import time

import numpy as np

import replicax as rx
from replicax.parameter_server.ray_transport import PlacedServer
from replicax.ray_cluster.session import Session
from tests.launch.programs import is_running, wait_until
from tests.parameter_server.conftest import cluster_of
from tests.ray_cluster.clusters import descendants

NUM_CLOSURES = 1000
NUM_FAULTS = 12
NUM_ROWS = 64
NOTICED_SECONDS = 10.0


@dataclasses.dataclass
class Fault:
    """A signal that a process got."""

    task: str
    number: signal.Signals
    after: int
    noticed_seconds: float | None = None


class FaultyJob:
    """A coordinator on Ray, with the variables that every closure changes."""

    def __init__(self, seed, **options):
        self._random = random.Random(seed)
        self.strategy = rx.ParameterServerStrategy(
            cluster_of(3, 2),
            rx.experimental.partitioners.FixedShardsPartitioner(2),
            transport="ray",
        )
        self.transport = self.strategy.extended.cluster.transport
        self.coordinator = rx.coordinator.ClusterCoordinator(self.strategy, queue_size=8, **options)
        self.faults = []
        self.pids = set()
        self._clocks = []
        self._closing = threading.Event()
        # Cut into halves, one on each server: the first row of each is that server's.
        with self.strategy.scope():
            self.counts = rx.Variable(np.zeros((2, NUM_CLOSURES), np.int32))
            self.marks = rx.Variable(np.zeros((2, NUM_CLOSURES), np.float32))
            self.table = rx.Variable(np.zeros((NUM_ROWS, 8), np.float32))
            self.total = rx.Variable(np.int32(0))

        def numbers():  # others in each process
            chance = random.Random()
            return iter(lambda: np.float32(chance.random()), None)

        self._numbers = iter(self.coordinator.create_per_worker_dataset(numbers))
        counts, marks, table, total = self.counts, self.marks, self.table, self.total

        @rx.function
        def closure(index, numbers):
            here = np.arange(NUM_CLOSURES) == index
            counts.assign_add((here * np.ones((2, 1))).astype(np.int32))
            marks.assign_add((here * np.ones((2, 1))).astype(np.float32) * next(numbers))
            table.add_rows(index % NUM_ROWS, np.ones((1, 8), np.float32))
            total.assign_add(index)
            return index

        self._closure = closure

    def run(self):
        """Schedules all closures, and signals processes meanwhile."""
        moments = sorted(self._random.sample(range(NUM_CLOSURES), NUM_FAULTS))
        values = []
        for index in range(NUM_CLOSURES):
            while moments and moments[0] <= index:
                self._signal_one(moments.pop(0))
            values.append(
                self.coordinator.schedule(self._closure, args=(np.int32(index), self._numbers))
            )
        self.coordinator.join()
        self.check()
        assert [int(value.fetch()) for value in values] == list(range(NUM_CLOSURES))

    def check(self):
        """Every closure is counted once on both servers, by one attempt."""
        np.testing.assert_array_equal(self.counts.numpy(), 1)
        marks = self.marks.numpy()
        np.testing.assert_array_equal(marks[0], marks[1], "updates of two attempts were mixed")
        rows = np.bincount(np.arange(NUM_CLOSURES) % NUM_ROWS, minlength=NUM_ROWS)
        np.testing.assert_array_equal(self.table.numpy(), np.tile(rows[:, None], 8))
        assert int(self.total.numpy()) == sum(range(NUM_CLOSURES))
        stats = self.coordinator.stats()
        assert stats.applied == stats.scheduled == NUM_CLOSURES, stats

    def _signal_one(self, after):
        """Kills or stops a process that runs; waits for one if all are being replaced."""
        tasks = [*self.transport.servers, *self.transport.workers]
        self.pids |= {task.placed.pid for task in tasks}

        def running():
            return [t for t in tasks if t.placed.address and is_running(t.placed.pid)]

        assert wait_until(running)
        task = self._random.choice(running())
        fault = Fault(task.name, self._random.choice([signal.SIGKILL, signal.SIGSTOP]), after)
        pid = task.placed.pid
        self.pids.add(pid)
        os.kill(pid, fault.number)
        self.faults.append(fault)
        clock = threading.Thread(target=self._time, args=(fault, task, pid), daemon=True)
        clock.start()
        self._clocks.append(clock)

    def _time(self, fault, task, pid):
        """Notes when the transport has noticed."""
        since = time.monotonic()
        while not self._closing.wait(0.02):
            if task.placed.address is None or task.placed.pid != pid:
                fault.noticed_seconds = time.monotonic() - since
                return

    def close(self):
        """Ends the job; none of its processes is left."""
        for task in (*self.transport.servers, *self.transport.workers):
            self.pids.add(task.placed.pid)
        for clock in self._clocks:
            clock.join(60)
        self._closing.set()
        self.strategy.extended.close()
        assert wait_until(lambda: not any(map(is_running, self.pids - {0})))


def run_one(seed):
    """A run with faults.

    Returns:
        Its figures.
    """
    since = time.monotonic()
    every = (20, 100, 5000)[seed % 3]
    job = FaultyJob(seed, snapshot_every=every)
    try:
        started = time.monotonic()
        job.run()
        ended = time.monotonic()
    finally:
        job.close()
    stats = job.coordinator.stats()
    noticed = [fault.noticed_seconds for fault in job.faults]
    assert None not in noticed, job.faults
    hit = [f"{fault.number.name[3:]} {fault.task}" for fault in job.faults]
    servers = sum(PlacedServer.kind in fault.task for fault in job.faults)
    return {
        "seed": seed,
        "faults": len(job.faults),
        "on servers": servers,
        "stopped": sum(fault.number is signal.SIGSTOP for fault in job.faults),
        "snapshot every": every,
        "retried": stats.retried,
        "replayed": stats.replayed,
        "slowest notice": round(max(noticed), 2),
        "seconds": round(ended - started, 1),
        "with start and end": round(time.monotonic() - since, 1),
        "which": hit,
    }


def is_ours(path):
    """Whether a file in shared memory is of Ray or of us."""
    return path.name.startswith(("plasma", "ray", "rx", "replicax"))


def main():
    """Runs, then looks for what is left."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", nargs=2, type=int, default=(0, 1), metavar=("FIRST", "END"))
    arguments = parser.parse_args()
    with Session(num_cpus=8):
        folder = pathlib.Path(os.environ["RAY_AUTH_TOKEN_PATH"]).parent  # of this cluster
        for seed in range(*arguments.seeds):
            print(json.dumps(run_one(seed)), flush=True)
    left = {
        "processes": len(descendants(of=os.getpid())),
        "files": [str(folder)] * folder.exists(),
        "shared memory": [str(p) for p in pathlib.Path("/dev/shm").glob("*") if is_ours(p)],
    }
    print(json.dumps({"left": left}), flush=True)
    assert not any(left.values())


if __name__ == "__main__":
    main()
