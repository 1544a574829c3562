"""A Keras model that is fitted and saved, the same on one worker and on several.

As a program it runs on the workers of a cluster, and each prints what it has found as one line
of JSON: ``python -m tests.multiprocess.keras_programs FOLDER``. With the word ``models`` after
it, it fits every model of `tests.integrations.keras.models` with every optimizer.
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
from tests.integrations.keras import models


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


def fit_with_backup(strategy, folder: pathlib.Path, *, epochs: int):
    """The figures of a `fit` that saves after each epoch, in one folder that all workers see."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = models.TASKS["mlp"].model()
        model.compile("adam", "mse")
    kept = epochs == 1  # as after a fit that was interrupted
    callbacks = [
        keras.callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=not kept),
        keras.callbacks.ModelCheckpoint(
            folder / "best" / "model.keras", monitor="loss", save_best_only=True
        ),
        keras.callbacks.EarlyStopping("loss"),
    ]
    task = models.TASKS["mlp"]
    options = {"batch_size": 8, "epochs": epochs, "shuffle": False, "verbose": 0}
    history = model.fit(task.x, task.y, callbacks=callbacks, **options).history
    loaded = keras.models.load_model(folder / "best" / "model.keras")
    return {
        "loss": history["loss"],
        "kept": (folder / "backup").exists(),
        "loaded": [weight.tolist() for weight in loaded.get_weights()],
        "weights": [weight.tolist() for weight in model.get_weights()],
    }


def main(folder: str, what: str = ""):
    strategy = rx.MultiWorkerMirroredStrategy()
    if what == "models":
        found = {
            f"{task} {optimizer}": models.trained(task, optimizer, strategy)
            for task in models.TASKS
            for optimizer in models.OPTIMIZERS
        }
        lists = {
            name: ([weight.tolist() for weight in weights], figures)
            for name, (weights, figures) in found.items()
        }
        print("found", json.dumps(lists), flush=True)
        return
    out = pathlib.Path(folder) / str(strategy.is_chief)
    out.mkdir(exist_ok=True)
    found = {str(shuffle): train(strategy, out, shuffle=shuffle) for shuffle in (False, True)}
    found["files"] = sorted(path.name for path in out.iterdir())
    both = pathlib.Path(folder) / "both"
    found["backup"] = [fit_with_backup(strategy, both, epochs=epochs) for epochs in (1, 3)]
    print("found", json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
