"""Models of all libraries trained on the workers of a cluster; each prints a line of JSON.

``python -m tests.multiprocess.model_libraries``.
"""

import json

import numpy as np

import replicax as rx
from tests.integrations.libraries import WITH_MODELS, models_of
from tests.integrations.problem import INPUTS, OPTIMIZERS

NUM_STEPS = 50
OPTIMIZER = {"mlp": "adamw", "convnet": "sgd", "gpt": "schedule"}


def train(strategy, library):
    """Parameters, statistics and losses, as plain lists, and one dropout mask a replica."""
    models, found = models_of(library), {}
    for name in INPUTS:
        make_optimizer = OPTIMIZERS[OPTIMIZER[name]]
        numbers, losses = models.train(strategy, name, make_optimizer, NUM_STEPS, wrap=rx.function)
        found[name] = {path: value.tolist() for path, value in numbers.items()}, losses
    step, _ = models.dropout(strategy)
    mask = strategy.run(rx.function(lambda: step()[None]))
    found["masks"] = np.asarray(strategy.gather(mask, axis=0)).tolist()
    return found


if __name__ == "__main__":
    strategy = rx.MultiWorkerMirroredStrategy()
    print(
        "found " + json.dumps({str(library): train(strategy, library) for library in WITH_MODELS})
    )
