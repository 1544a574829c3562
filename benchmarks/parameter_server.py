"""How many closures a second do parameter servers in one process run, and at what CPU time?

Three kinds of step, each with 1, 2 and 3 workers and one or two servers: ``mlp`` (5 MB of dense
parameters, SGD), ``embedding`` (5,120 rows of a table of 1,000,000 x 32, SGD) and ``empty``.
The kinds and numbers of workers take turns, round by round, in one process; the first round,
which compiles, is left out. One JSON object is printed for each pair: steps a second and CPU
milliseconds a step, medians over the rounds. A row is refused unless every closure that was
scheduled has been applied.

Usage: python benchmarks/parameter_server.py [--rounds 5] [--steps 200] [--workers 1 2 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

BATCH = 64
WIDTH = 640
ROWS, DIM, LOOKED_UP = 1_000_000, 32, 5120
Step = Callable[[], Any]


def coordinator_of(num_workers: int, num_servers: int) -> Any:
    """A coordinator of so many workers and servers in this process."""
    cluster = rx.cluster_resolver.SimpleClusterResolver(
        {
            "ps": [f"localhost:{1 + i}" for i in range(num_servers)],
            "worker": [f"localhost:{101 + i}" for i in range(num_workers)],
        }
    )
    halves = rx.experimental.partitioners.MinSizePartitioner(16 << 20, max_shards=num_servers)
    return rx.coordinator.ClusterCoordinator(rx.ParameterServerStrategy(cluster, halves))


def mlp(coordinator: Any) -> Step:
    """Three dense layers."""
    with coordinator.strategy.scope():
        layers = [rx.Variable(np.full((WIDTH, WIDTH), 1e-3, np.float32)) for _ in range(3)]
        optimizer = rx.Optimizer(optax.sgd(1e-3))
    random = np.random.default_rng(0)
    x = random.normal(size=(BATCH, WIDTH)).astype(np.float32)

    def loss(x: Any) -> Any:
        for layer in layers:
            x = jnp.tanh(x @ layer)
        return jnp.mean(x * x)

    @rx.function
    def step(x: Any) -> None:
        gradients = rx.grad(lambda: loss(x), layers)
        optimizer.apply_gradients(zip(gradients, layers, strict=True))

    return lambda: coordinator.schedule(step, args=(x,))


def embedding(coordinator: Any) -> Step:
    """Some rows of a large table."""
    with coordinator.strategy.scope():
        table = rx.Variable(np.full((ROWS, DIM), 1e-2, np.float32))
        optimizer = rx.Optimizer(optax.sgd(1e-3))
    random = np.random.default_rng(0)
    batches = [random.integers(0, ROWS, LOOKED_UP).astype(np.int32) for _ in range(16)]

    @rx.function
    def step(ids: Any) -> None:
        gradient = rx.grad(lambda: jnp.mean(jnp.square(table.gather(ids))), table)
        optimizer.apply_gradients([(gradient, table)])

    turns = iter(range(10**9))
    return lambda: coordinator.schedule(step, args=(batches[next(turns) % len(batches)],))


def empty(coordinator: Any) -> Step:
    """Nothing but an addition."""
    with coordinator.strategy.scope():
        count = rx.Variable(0.0)

    @rx.function
    def step() -> None:
        count.assign_add(1.0)

    return lambda: coordinator.schedule(step)


KINDS = {"mlp": (mlp, 1), "embedding": (embedding, 2), "empty": (empty, 1)}


def measure(coordinator: Any, step: Step, steps: int) -> tuple[float, float]:
    """Steps a second, and CPU milliseconds a step."""
    applied = coordinator.stats().applied
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    coordinator.join()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    missing = steps - (coordinator.stats().applied - applied)
    if missing:
        raise SystemExit(f"refused: {missing} of {steps} closures were not applied")
    return steps / wall, 1e3 * cpu / steps


def main() -> None:
    """Prints a row for each kind of step and number of workers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    options = parser.parse_args()
    runs = {}
    for kind in options.kinds:
        make, num_servers = KINDS[kind]
        for num_workers in options.workers:
            coordinator = coordinator_of(num_workers, num_servers)
            runs[kind, num_workers] = coordinator, make(coordinator)
    measured: dict[Any, list[tuple[float, float]]] = {key: [] for key in runs}
    for number in range(options.rounds + 1):
        for key, (coordinator, step) in runs.items():
            found = measure(coordinator, step, options.steps if number else 20)
            if number:
                measured[key].append(found)
    for (kind, num_workers), found in measured.items():
        coordinator, _ = runs[kind, num_workers]
        row = {
            "benchmark": "parameter_server",
            "transport": "embedded",
            "step": kind,
            "workers": num_workers,
            "steps_per_second": round(statistics.median(each[0] for each in found), 1),
            "cpu_ms_per_step": round(statistics.median(each[1] for each in found), 3),
            "staleness": coordinator.stats().staleness,
            "jax": jax.__version__,
        }
        print(json.dumps(row))


if __name__ == "__main__":
    main()
