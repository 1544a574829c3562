"""What the workers of the tests of preemption run."""

import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np

from tests.multiprocess.checkpoint_programs import main, make_strategy

PAUSE_SECONDS = 3.0


def preempted(rank, folder, how):
    """Trains with a `PreemptionCheckpointHandler` until it is told to leave."""
    import replicax as rx

    own = pathlib.Path(sys.argv[2])
    strategy = make_strategy()
    with strategy.scope():
        w = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM)
    checkpoint = rx.Checkpoint(w=w)
    saves = []
    config = None
    if how == "watched":
        config = rx.experimental.TerminationConfig(
            termination_watcher_fn=lambda: rank == 1 and (own / "leave").exists(),
            grace_period=3,
            exit_fn=lambda: sys.exit(7),
            save_fn=lambda: saves.append([manager.save(), float(w.numpy())]),
        )
    manager = rx.CheckpointManager(checkpoint, folder / "preempted", 5)
    handler = rx.experimental.PreemptionCheckpointHandler(
        strategy.cluster_resolver, manager, termination_config=config
    )
    begin = [float(w.numpy()), handler.total_run_calls]

    @rx.function
    def step():
        w.assign_add(0.5)

    def slow_step():
        time.sleep(0.02 * (1 + rank))
        strategy.run(step)

    try:
        while True:
            handler.run(slow_step)
            if handler.total_run_calls == begin[1] + 5:
                (own / f"training-{rank}").touch()
    finally:
        end = [float(w.numpy()), handler.total_run_calls]
        text = json.dumps({"begin": begin, "end": end, "saves": saves})
        (own / f"result-{rank}").write_text(text)


def paused(rank, folder):
    """Worker 0 is told to leave while worker 1 is stopped and cannot agree on the step."""
    import replicax as rx

    strategy = make_strategy()
    with strategy.scope():
        w = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM)
    handler = rx.experimental.PreemptionCheckpointHandler(
        strategy.cluster_resolver, rx.Checkpoint(w=w), folder / "paused"
    )
    handler.run(lambda: strategy.run(lambda: w.assign_add(0.5)))
    ticks = [time.monotonic()]

    def tick():
        while True:
            time.sleep(0.05)
            ticks.append(time.monotonic())

    if rank == 1:
        own = os.getpid()
        subprocess.Popen(["sh", "-c", f"sleep {PAUSE_SECONDS}; kill -CONT {own}"])
        os.kill(own, signal.SIGSTOP)
    else:
        threading.Thread(target=tick, daemon=True).start()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PAUSE_SECONDS / 3)  # worker 0 has begun to agree
    try:
        while True:
            handler.run(time.sleep, 0.01)
    finally:
        gaps = [after - before for before, after in itertools.pairwise(ticks)]
        told = {"calls": handler.total_run_calls, "gap": max(gaps, default=0)}
        (pathlib.Path(sys.argv[2]) / f"result-{rank}").write_text(json.dumps(told))


def alone(folder):
    """A process without others, which is told to leave again and again until it has ended."""
    import replicax as rx

    checkpoint = rx.Checkpoint(w=rx.Variable(np.zeros(1000, np.float32)))

    def train():
        with rx.experimental.PreemptionCheckpointHandler(None, checkpoint, folder) as handler:
            (folder / "ready").write_text("ready")
            while True:
                handler.run(checkpoint.w.assign_add, np.ones(1000, np.float32))

    try:
        train()
    finally:
        time.sleep(0.2)  # what a program does at its end


LATE_SECONDS = 2.0
NUM_TOLD_STEPS = 60


def told(rank, folder, how):
    """Trains for `NUM_TOLD_STEPS`, and is told to leave at a moment of `how`."""
    import replicax as rx

    strategy = make_strategy(5)
    with strategy.scope():
        w = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM)

    def handler(name):
        manager = rx.CheckpointManager(rx.Checkpoint(w=w), folder / name, 1)
        return rx.experimental.PreemptionCheckpointHandler(strategy.cluster_resolver, manager)

    @rx.function
    def step():
        w.assign_add(0.5)

    def leave():
        os.kill(os.getpid(), signal.SIGTERM)

    def hold_still():
        """Stops this worker, which cannot agree on the step then, and ends it later."""
        own = os.getpid()
        subprocess.Popen(["sh", "-c", f"sleep {LATE_SECONDS}; kill -KILL {own}"])
        os.kill(own, signal.SIGSTOP)

    strategy.run(step)  # both are there
    if how == "late" and rank == 1:
        time.sleep(LATE_SECONDS)
    handlers = [handler(name) for name in (("a", "b") if how == "handlers" else ("a",))]
    if how == "late" and rank == 0:
        leave()  # before its first step, and before worker 1 listens
    at = {"storm": (3, 4, 5), "handlers": (3,) if rank else (), "over": ()}.get(how, ())
    began = time.monotonic()
    try:
        for number in range(NUM_TOLD_STEPS):
            if number in at:
                leave()
                leave()
            if how == "lost" and number == 3:
                hold_still() if rank else leave()
            if how != "lost":  # a worker that needs no other one must leave, too
                strategy.run(step)
            time.sleep(0.05)
            for one in handlers:
                one.save_checkpoint_if_preempted()
        if how == "over" and rank == 1:
            time.sleep(LATE_SECONDS)
            leave()  # the other worker's program is over
            time.sleep(LATE_SECONDS / 2)
            handlers[0].save_checkpoint_if_preempted()
    finally:
        took = time.monotonic() - began
        result = {"w": float(w.numpy()) if how != "lost" else 0, "seconds": took}
        (pathlib.Path(sys.argv[2]) / f"result-{rank}").write_text(json.dumps(result))
    return result


def launched(folder, total):
    """A loop with `BackupAndRestore`, started by ``replicax launch`` or alone."""
    import replicax as rx

    strategy = make_strategy()
    rank = strategy.cluster_resolver.task_id or 0
    with strategy.scope():
        w = rx.Variable(np.float32(1), aggregation=rx.VariableAggregation.MEAN)
    dataset = rx.data.Dataset.from_tensor_slices(np.arange(8, dtype=np.float32))
    iterator = iter(strategy.distribute_dataset(dataset.shuffle(8, seed=3).repeat().batch(4)))
    checkpoint = rx.Checkpoint(w=w, iterator=iterator)
    backup = rx.BackupAndRestore(
        checkpoint,
        folder / "backup",
        every=4,
        enable_async=True,
        termination_config=rx.experimental.TerminationConfig(),
    )

    @rx.function
    def step(x):
        mean = rx.get_replica_context().all_reduce("SUM", x.sum()) / 4
        w.assign(w * 0.9 + mean)

    attempt = os.environ.get("REPLICAX_ATTEMPT", "0")
    for number in backup.steps(int(total)):
        strategy.run(step, args=(next(iterator),))
        time.sleep(0.05)
        with (folder / f"steps-{rank}").open("a") as file:
            file.write(f"{attempt} {number} {np.asarray(w).tobytes().hex()}\n")
        (folder / f"pid-{rank}-{attempt}").write_text(str(os.getpid()))
    return np.asarray(w).tobytes().hex()


def watched_by_all(rank, folder):
    """Worker 1 is told to leave, and leaves; worker 0 hears of it and waits for that."""
    import replicax as rx

    strategy = make_strategy()
    del strategy
    watcher = rx.experimental.PreemptionWatcher()
    found = {"before": watcher.preemption_message}
    if rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
        found["message"] = watcher.preemption_message
        time.sleep(1)
        (folder / "leaves").touch()
        return found
    end = time.monotonic() + 60
    while watcher.preemption_message is None and time.monotonic() < end:
        time.sleep(0.05)
    watcher.block_until_worker_exit()
    found["message"] = watcher.preemption_message
    found["has left"] = (folder / "leaves").exists()
    return found


if __name__ == "__main__":
    if sys.argv[1] == "launched":
        launched(pathlib.Path(sys.argv[2]), sys.argv[3])
    elif sys.argv[1] == "alone":
        alone(pathlib.Path(sys.argv[2]))
    else:
        main(preempted, paused, told, watched_by_all)
