"""The twin of multi_worker_keras.py for TensorFlow."""

import json
import os
import socket
import subprocess
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # TensorFlow trains Keras 3 on one worker only

import numpy as np
import tensorflow as tf

EPOCHS, BATCH, WORKERS = 5, 32, 2
X = np.random.default_rng(0).normal(size=(240, 3)).astype(np.float32)
Y = np.tanh(X @ np.float32([[1], [-2], [3]]))


def make_model():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((3,)),
            tf.keras.layers.Dense(8, activation="tanh"),
            tf.keras.layers.Dense(1),
        ]
    )
    random = np.random.default_rng(2)  # weights that do not depend on the library
    for weight in model.weights:
        weight.assign(random.normal(scale=0.3, size=weight.shape))
    model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    return model


def train():
    """What every worker does."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH).with_options(options)
    with strategy.scope():
        model = make_model()
    history = model.fit(data, epochs=EPOCHS, verbose=0)
    if strategy.cluster_resolver.task_id == 0:
        for epoch, loss in enumerate(history.history["loss"]):
            print(f"epoch {epoch}: loss {loss:.6f}")


def start_workers():
    """One process for each worker, told by `TF_CONFIG` who they all are."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(WORKERS)]
    addresses = [f"localhost:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    workers = []
    for index in range(WORKERS):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = os.environ | {"TF_CONFIG": json.dumps(task)}
        workers.append(subprocess.Popen([sys.executable, __file__], env=environment))
    if any([worker.wait() for worker in workers]):
        raise SystemExit("a worker has failed")


if __name__ == "__main__":
    train() if "TF_CONFIG" in os.environ else start_workers()
