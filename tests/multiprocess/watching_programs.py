"""What the workers of the tests of `rx.watch` run."""

import json
import pathlib
import sys
import time

NUM_STEPS = 60


def training(strategy):
    """A step over all workers, and the batches for it."""
    import numpy as np

    import replicax as rx

    with strategy.scope():
        w = rx.Variable(np.ones(8, np.float32))
        optimizer = rx.optimizers.SGD(0.01)

    @rx.function
    def step(x):
        loss, gradient = rx.value_and_grad(lambda: rx.compute_average_loss((x @ w) ** 2), w)
        optimizer.apply_gradients([(gradient, w)])
        return loss

    rows = np.ones((6 * NUM_STEPS, 8), np.float32)
    return step, strategy.distribute_dataset(rows, batch_size=6)


def train(folder, rank, slow_rank, seconds):
    """Trains in a watch; one worker, or "all" of them, sleeps that long in each step."""
    import dataclasses

    import replicax as rx

    strategy = rx.MultiWorkerMirroredStrategy()
    step, dataset = training(strategy)
    line = folder / f"line-{rank}"
    with rx.watch(strategy, file=line, refresh_seconds=0.2) as watch:
        for batch in dataset:
            if slow_rank in ("all", str(rank)):
                time.sleep(float(seconds))
            strategy.run(step, args=(batch,))
    report = watch.report()
    found = dataclasses.asdict(report) | {"slow": report.slow_workers, "text": str(report)}
    return found | {"line": line.read_text() if line.exists() else None}


def fail(folder, rank):
    """The last worker fails in the middle of a watched loop; the others say how theirs ended."""
    import replicax as rx

    strategy = rx.MultiWorkerMirroredStrategy()
    step, dataset = training(strategy)
    watch = rx.watch(strategy, file=folder / f"line-{rank}", refresh_seconds=0.2)
    try:
        with watch:
            for number, batch in enumerate(dataset):
                if number == 20 and rank == 1:
                    raise ZeroDivisionError("in the loop")
                strategy.run(step, args=(batch,))
    except Exception as error:
        began = time.monotonic()
        return {
            "error": type(error).__name__,
            "ended_by": watch.report().ended_by,
            "steps": watch.report().steps,
            "seconds": time.monotonic() - began,
        }
    return {}


if __name__ == "__main__":
    name, own, rank, shared, *arguments = sys.argv[1:]
    result = globals()[name](pathlib.Path(shared), int(rank), *arguments)
    (pathlib.Path(own) / f"result-{rank}").write_text(json.dumps(result))
