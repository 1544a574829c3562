"""NNX models trained on the workers of a cluster; each prints its parameters as a line of JSON.

``python -m tests.multiprocess.nnx_training``.
"""

import json

import numpy as np
from flax import nnx

import replicax as rx
from tests.integrations.flax.models import CASES, OPTIMIZERS, batches, make_step, numbers

NUM_STEPS = 12


def train(strategy, name):
    """Parameters, statistics and losses, as plain lists, and one dropout mask a replica."""
    case = CASES[name]
    with strategy.scope():
        model = case.make(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, OPTIMIZERS["adamw"](), wrt=nnx.Param)
        dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(1))
    steps = {rows: rx.function(make_step(model, optimizer, rows)) for rows in (24, 13)}
    dataset = list(batches(case, NUM_STEPS))
    losses = []
    for batch in dataset:
        share = strategy.distribute_batch(batch)
        loss = strategy.run(steps[len(batch[0])], args=share)
        losses.append(float(strategy.reduce("SUM", loss, axis=None)))
    mask = strategy.run(rx.function(lambda: dropout(np.ones((1, 32), np.float32))))
    return {
        "numbers": {path: value.tolist() for path, value in numbers(model).items()},
        "losses": losses,
        "masks": np.asarray(strategy.gather(mask, axis=0)).tolist(),
    }


if __name__ == "__main__":
    strategy = rx.MultiWorkerMirroredStrategy()
    print("found " + json.dumps({name: train(strategy, name) for name in ("mlp", "convnet")}))
