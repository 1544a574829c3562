"""A Keras model that is fitted and saved, the same on one worker and on several.

As a program it runs on the workers of a cluster, and each prints what it has found as one line
of JSON: ``python -m tests.multiprocess.keras_programs FOLDER``.
"""

import json
import os
import pathlib
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")  # before Keras is imported

import keras
import numpy as np
from keras import layers

import replicax as rx


def train(strategy, folder: pathlib.Path, *, shuffle: bool):
    """Weights, figures and predictions as plain lists; worker 0's random numbers shuffle."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(22, 6)).astype("float32")
    y = rng.normal(size=(22, 2)).astype("float32")
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), layers.Dense(5), layers.Dense(2)])
        model.compile("adam", "mse", metrics=["mae"])
    if not strategy.is_chief:
        np.random.seed(99)
    fitted = model.fit(
        x, y, batch_size=8, epochs=2, shuffle=shuffle, validation_data=(x[:9], y[:9])
    )
    path = folder / f"{shuffle}.keras"
    model.save(path)
    return {
        "history": fitted.history,
        "weights": [weight.tolist() for weight in model.get_weights()],
        "predicted": model.predict(x, batch_size=8, verbose=0).tolist(),
        "saved": path.exists() or not strategy.is_chief,
    }


def main(folder: str):
    strategy = rx.MultiWorkerMirroredStrategy()
    out = pathlib.Path(folder) / str(strategy.is_chief)
    out.mkdir(exist_ok=True)
    found = {str(shuffle): train(strategy, out, shuffle=shuffle) for shuffle in (False, True)}
    found["files"] = sorted(path.name for path in out.iterdir())
    print("found", json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
