"""Training with its state split over the replicas of several workers.

As a program it runs on the workers of a cluster, and each prints what it has found as one line
of JSON: ``python -m tests.multiprocess.sharded FOLDER``.
"""

import json
import pathlib
import sys

import numpy as np
import optax

import replicax as rx
from tests.multiprocess import training

STAGES = (1, 2, 3)


def optimizer():
    """One whose updates need the whole of every gradient."""
    return optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.01))


def saved(strategy, folder):
    """Saves a split variable, changes it, and restores it; its values before and after."""
    with strategy.scope():
        w = rx.Variable(np.arange(7, dtype=np.float32), name="w")
        momentum = rx.Optimizer(optax.sgd(0.5, momentum=0.9))

    @rx.function
    def step():
        momentum.apply_gradients([(w.read_value() / strategy.num_replicas_in_sync, w)])

    strategy.run(step)
    checkpoint = rx.Checkpoint(w=w, optimizer=momentum)
    path = checkpoint.write(str(folder / "split"))
    at_save = w.numpy().tolist()
    strategy.run(step)
    later = w.numpy().tolist()
    w.assign(np.zeros(7, np.float32))
    assigned = w.numpy().tolist()
    checkpoint.read(path).assert_consumed()
    restored = w.numpy().tolist()
    strategy.run(step)
    return {
        "at save": at_save,
        "later": later,
        "assigned": assigned,
        "restored": restored,
        "again": w.numpy().tolist(),
    }


def main(folder):
    """What a worker of a cluster runs."""
    options = rx.experimental.CommunicationOptions(timeout_seconds=60)
    found = {}
    for stage in STAGES:
        strategy = rx.MultiWorkerMirroredStrategy(
            communication_options=options, sharding=rx.experimental.Sharding(stage=stage)
        )
        found[str(stage)] = training.train(strategy, optimizer)
    found["saved"] = saved(strategy, folder)
    with strategy.scope():
        w = rx.Variable(np.arange(7, dtype=np.float32), name="w")
    found["bounds"] = w._bounds
    found["parts"] = [part.tolist() for part in w._parts]
    found["eager"] = float(strategy.reduce("SUM", strategy.run(lambda: w.read_value().sum()), None))
    if strategy.is_chief:  # alone: it must not wait for the others
        found["repr"] = repr(w)
        found["drawing"] = str(rx.visualize_value(w))
    print("found " + json.dumps(found))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
