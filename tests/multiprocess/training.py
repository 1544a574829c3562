"""A training run and the reading of datasets, the same on one worker and on several.

As a program it runs on the workers of a cluster, and each prints what it has found as one line
of JSON: ``python -m tests.multiprocess.training FOLDER``.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

GLOBAL_BATCH = 16
NUM_EXAMPLES = 61  # the last batch of each pass is short
NUM_STEPS = 50
OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9),
    "adam": lambda: optax.adam(0.01),
}
NUM_FILES = 5


def examples():
    """Inputs and classes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_EXAMPLES, 6)).astype(np.float32)
    return x, np.argmax(x[:, :3] + x[:, 3:], axis=1).astype(np.int32)


def train(strategy, make_optimizer):
    """Final parameters, losses and metrics of a small classifier, as plain lists."""
    rng = np.random.default_rng(1)
    with strategy.scope():
        first = rx.Variable(rng.normal(size=(6, 8)).astype(np.float32) / 3, name="first")
        second = rx.Variable(rng.normal(size=(8, 3)).astype(np.float32) / 3, name="second")
        optimizer = rx.Optimizer(make_optimizer())
        accuracy = rx.metrics.SparseCategoricalAccuracy()
        mean_loss = rx.metrics.Mean()
    params = [first, second]

    @rx.function
    def step(x, y):
        def loss_fn():
            logits = jax.nn.relu(x @ first) @ second
            each = optax.softmax_cross_entropy_with_integer_labels(logits, y)
            return rx.compute_average_loss(each), (logits, each)

        (loss, (logits, each)), gradients = rx.value_and_grad(loss_fn, params, has_aux=True)
        optimizer.apply_gradients(zip(gradients, params, strict=True))
        accuracy.update_state(y, logits)
        mean_loss.update_state(each)
        return loss

    dataset = strategy.distribute_dataset(examples(), batch_size=GLOBAL_BATCH)
    losses = []
    while len(losses) < NUM_STEPS:
        for x, y in dataset:
            loss = strategy.run(step, args=(x, y))
            losses.append(float(strategy.reduce("SUM", loss, axis=None)))
    return {
        "first": first.numpy().tolist(),
        "second": second.numpy().tolist(),
        "losses": losses[:NUM_STEPS],
        "accuracy": float(accuracy.result()),
        "mean loss": float(mean_loss.result()),
    }


def write_files(folder):
    """Text files of different lengths, each line a number that is in no other."""
    number = 0
    for index in range(NUM_FILES):
        lines = [str(number + i) for i in range(index + 2)]
        number += len(lines)
        (folder / f"{index}.txt").write_text("\n".join(lines) + "\n")
    return number


def read(strategy, folder):
    """What each policy gives in each step: all replicas together, and this worker's own part."""
    files = sorted(str(path) for path in folder.glob("*.txt"))
    lines = rx.data.TextLineDataset(files).map(lambda line: np.int32(line))
    pipelines = {
        "arrays": (np.arange(23, dtype=np.int32), {"batch_size": 8}),
        "shuffled": (rx.data.Dataset.range(23).shuffle(23, seed=3).batch(8), {}),
        "DATA": (lines.batch(4), {"auto_shard_policy": "DATA"}),
        "FILE": (lines.batch(4), {"auto_shard_policy": "FILE"}),
        "OFF": (lines.batch(4), {"auto_shard_policy": "OFF"}),
        "HINT": (lines.batch(4), {"auto_shard_policy": "HINT"}),
    }
    steps = {}
    for name, (pipeline, options) in pipelines.items():
        dataset = strategy.distribute_dataset(pipeline, **options)
        steps[name] = [
            [
                np.asarray(strategy.gather(batch, axis=0)).tolist(),
                [np.asarray(p).tolist() for p in strategy.experimental_local_results(batch)],
            ]
            for batch in dataset
        ]
    return steps


def from_function(strategy):
    """Per-replica batches of each worker's own pipeline, of another length on each worker."""

    def dataset_fn(context):
        worker = context.input_pipeline_id
        return [np.full(2, 10 * worker + i, np.int32) for i in range(2 + worker)]

    dataset = strategy.distribute_datasets_from_function(dataset_fn)
    return [np.asarray(strategy.gather(batch, axis=0)).tolist() for batch in dataset]


def main(folder):
    """What a worker of a cluster runs."""
    options = rx.experimental.CommunicationOptions(timeout_seconds=60)
    strategy = rx.MultiWorkerMirroredStrategy(communication_options=options)
    found = {name: train(strategy, make) for name, make in OPTIMIZERS.items()}
    found["datasets"] = read(strategy, folder)
    found["from function"] = from_function(strategy)
    x, _ = examples()
    predicted = strategy.predict(
        rx.function(lambda x: jnp.sum(x, axis=1)),
        strategy.distribute_dataset(x, batch_size=GLOBAL_BATCH),
    )
    found["predicted"] = predicted.tolist()
    with strategy.scope():
        generator = rx.random.Generator(7)
    key = strategy.run(lambda: jax.random.key_data(generator.next_replica_key()))
    found["keys"] = np.asarray(strategy.gather(key, axis=0)).tolist()
    found["place"] = [strategy.is_chief, list(strategy.extended.mesh.local_replicas)]
    print("found " + json.dumps(found))


if __name__ == "__main__":
    import pathlib

    main(pathlib.Path(sys.argv[1]))
