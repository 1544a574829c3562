"""The twin of multi_worker_restart.py for TensorFlow."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import numpy as np
import tensorflow as tf

EPOCHS, BATCH, WORKERS = 5, 32, 2
X = np.random.default_rng(0).normal(size=(240, 3)).astype(np.float32)
Y = X @ np.float32([[1], [-2], [3]])


def train(folder):
    """What every worker does."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    resolver = strategy.cluster_resolver
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = strategy.experimental_distribute_dataset(data.with_options(options))
    with strategy.scope():
        w = tf.Variable(tf.zeros([3, 1]), name="w")
        epoch = tf.Variable(0, name="epoch")
    checkpoint = tf.train.Checkpoint(w=w, epoch=epoch)
    own = folder if resolver.task_id == 0 else f"{folder}/worker"  # two may not write one file
    manager = tf.train.CheckpointManager(checkpoint, own, max_to_keep=1)
    if tf.train.latest_checkpoint(folder):
        checkpoint.restore(tf.train.latest_checkpoint(folder))

    def train_step(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            errors = tf.reduce_sum(tf.square(tf.matmul(x, w) - y), axis=1)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=BATCH)
        return loss, tape.gradient(loss, w)

    @tf.function
    def distributed_step(batch):
        losses, gradients = strategy.run(train_step, args=(batch,))
        w.assign_sub(0.05 * strategy.reduce("SUM", gradients, axis=None))
        return strategy.reduce("SUM", losses, axis=None)

    first = int(epoch.numpy())
    while int(epoch.numpy()) < EPOCHS:
        losses = [float(distributed_step(batch)) for batch in data]
        if resolver.task_id == 0:
            print(f"epoch {int(epoch.numpy())}: loss {sum(losses) / len(losses):.6f}", flush=True)
        epoch.assign_add(1)
        manager.save()
        if first == 0 and int(epoch.numpy()) == 2 and resolver.task_id == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # what a machine that is taken away looks like


def run_workers(folder):
    """One process for each worker, told by `TF_CONFIG` who they all are; whether all succeeded."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(WORKERS)]
    addresses = [f"localhost:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    workers = []
    for index in range(WORKERS):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = os.environ | {"TF_CONFIG": json.dumps(task), "TUTORIAL_FOLDER": folder}
        workers.append(subprocess.Popen([sys.executable, __file__], env=environment))
    while all(worker.poll() in (None, 0) for worker in workers):
        if all(worker.poll() == 0 for worker in workers):
            return True
        time.sleep(0.1)
    for worker in workers:  # one has failed, and the others cannot go on without it
        worker.kill()
        worker.wait()
    return False


if __name__ == "__main__":
    if "TF_CONFIG" in os.environ:
        train(os.environ["TUTORIAL_FOLDER"])
    else:
        with tempfile.TemporaryDirectory() as folder:
            if not run_workers(folder):
                print("a worker has failed; starting again", flush=True)
                if not run_workers(folder):
                    raise SystemExit("a worker has failed again")
