"""A recommender whose table of embeddings is divided over two parameter servers.

Three workers train it without waiting for each other, all in this process:

    python examples/parameter_server.py

The data is generated: every user and every film has hidden tastes, and a rating is how well they
fit. Each step needs the rows of its own users and films only, and only these travel. At the end the
program shows how fast each worker was, how stale what it read, and the loss beside that of
synchronous training.
"""

from __future__ import annotations

import argparse
import sys

import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

NUM_USERS, NUM_FILMS, TASTES = 300, 100, 8
BATCH_SIZE = 256


def ratings(seed: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Users, films (numbered after the users) and ratings."""
    tastes = np.random.default_rng(0).normal(size=(NUM_USERS + NUM_FILMS, 2)).astype(np.float32)
    random = np.random.default_rng(seed)
    users = random.integers(0, NUM_USERS, count).astype(np.int32)
    films = random.integers(NUM_USERS, NUM_USERS + NUM_FILMS, count).astype(np.int32)
    return users, films, np.tanh((tastes[users] * tastes[films]).sum(axis=1))


def train(num_workers: int, num_steps: int, max_staleness: int | None = None) -> tuple[float, str]:
    """The loss on ratings that were not trained on, and a table of how it went."""
    cluster = rx.cluster_resolver.SimpleClusterResolver(
        {
            "ps": ["localhost:2001", "localhost:2002"],
            "worker": [f"localhost:{3001 + worker}" for worker in range(num_workers)],
        }
    )
    by_rows = rx.experimental.partitioners.MinSizePartitioner(min_shard_bytes=4096, max_shards=2)
    strategy = rx.ParameterServerStrategy(cluster, by_rows)
    coordinator = rx.coordinator.ClusterCoordinator(
        strategy, max_staleness=max_staleness, queue_size=4 * num_workers
    )
    with strategy.scope():
        start = np.random.default_rng(1).normal(scale=0.3, size=(NUM_USERS + NUM_FILMS, TASTES))
        table = rx.Variable(start.astype(np.float32), name="embeddings")
        weights = rx.Variable(np.ones(TASTES, np.float32), name="weights")
        optimizer = rx.Optimizer(optax.adagrad(0.5))

    def predicted(users, films):
        return jnp.tanh((table.gather(users) * table.gather(films)) @ weights)

    def dataset_fn():
        worker = rx.coordinator.experimental_get_current_worker_index()
        step = 0
        while True:  # every worker sees ratings of its own
            yield ratings(10 + num_workers * step + worker, BATCH_SIZE)
            step += 1

    @rx.function
    def step_fn(iterator):
        users, films, wanted = next(iterator)

        def loss():
            return jnp.mean(jnp.square(predicted(users, films) - wanted))

        gradients = rx.grad(loss, [table, weights])
        optimizer.apply_gradients(zip(gradients, [table, weights], strict=True))

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    for step in range(num_steps):
        coordinator.schedule(step_fn, args=(iterator,))
        show_progress(step + 1, num_steps)
    coordinator.join()
    users, films, wanted = ratings(5, 4000)
    test_loss = jnp.mean(jnp.square(predicted(users, films) - wanted))
    return float(test_loss), str(coordinator.stats())


def show_progress(step: int, num_steps: int) -> None:
    """A bar, where somebody is looking."""
    if sys.stderr.isatty():
        done = 30 * step // num_steps
        end = "\n" if step == num_steps else ""
        print(f"\r[{'#' * done:<30}] {step}/{num_steps}", end=end, file=sys.stderr, flush=True)


def main() -> None:
    """Trains asynchronously and synchronously, and compares."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600)
    args = parser.parse_args()
    loss, table = train(args.workers, args.steps)
    print(table)
    synchronous, _ = train(args.workers, args.steps, max_staleness=0)
    print(f"loss  {loss:.4f} (synchronous: {synchronous:.4f})")


if __name__ == "__main__":
    main()
