"""What does `rx.watch` cost a step?

The thread of the loop tells the watch what it does, and once a second a thread looks at the
figures and draws them. Both are measured by the CPU time of their threads, which other programs on
the machine change less than the clock:

* a training step whose batches come from a distributed dataset, in alternating rounds, plain and
  watched, where no look falls into a round;
* one look that draws on a terminal (a pseudo terminal, whose output is thrown away).

One JSON object for each number of replicas and each size of the step: microseconds of the calling
thread per step, medians over the rounds; the median difference within each round, and where that
would be after very many rounds, with a probability of 95%; what a watch takes of a step of 1 ms.

Usage: python benchmarks/watching.py [--rounds 60] [--replicas 1 2] [--sizes 16 128]
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pty
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from alternating import environment, parse_options

import replicax as rx

STEPS = 200
BATCH = 256
LOOKS = 50
WARM_UP = 20


def loop(devices: list[Any], size: int) -> tuple[rx.Strategy, Callable[[int], None]]:
    """A strategy, and a function that makes so many steps with a square matrix of this size."""
    strategy = rx.MirroredStrategy(devices)
    with strategy.scope():
        weights = rx.Variable(np.eye(size, dtype=np.float32))
        optimizer = rx.optimizers.SGD(1e-3)

    @rx.function
    def step(x: Any) -> Any:
        def loss() -> Any:
            return rx.compute_average_loss(((jnp.tanh(x @ weights) @ weights - x) ** 2).mean(1))

        value, gradient = rx.value_and_grad(loss, weights)
        optimizer.apply_gradients([(gradient, weights)])
        return value

    rows = np.random.default_rng(0).normal(size=(16 * BATCH, size)).astype(np.float32)
    dataset = strategy.distribute_dataset(rows, batch_size=BATCH)

    def run(steps: int) -> None:
        done = 0
        while done < steps:
            for batch in dataset:
                result = strategy.run(step, args=(batch,))
                done += 1
        jax.block_until_ready(strategy.experimental_local_results(result))

    return strategy, run


@contextlib.contextmanager
def terminal() -> Iterator[None]:
    """Makes the standard output a pseudo terminal, and throws away what it gets."""
    reading, writing = pty.openpty()

    def read() -> None:
        with contextlib.suppress(OSError):
            while os.read(reading, 1 << 16):
                pass

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    with open(writing, "w") as screen, contextlib.redirect_stdout(screen):
        yield
    thread.join()
    os.close(reading)


def median_interval(values: list[float]) -> tuple[float, float]:
    """Where the median would be after very many rounds, with a probability of 95%."""
    ordered = sorted(values)
    outside = max(0, math.floor(len(ordered) / 2 - 0.98 * math.sqrt(len(ordered))))
    return ordered[outside], ordered[-1 - outside]


def host_us(run: Callable[[int], None]) -> float:
    """Microseconds of the calling thread per step."""
    run(WARM_UP)  # the caches belong to another round
    begin = time.thread_time()
    run(STEPS)
    return 1e6 * (time.thread_time() - begin) / STEPS


def look_us(strategy: rx.Strategy, run: Callable[[int], None]) -> float:
    """Microseconds that the thread of a watch needs for one look, drawn on a terminal."""
    times = []
    with terminal(), rx.watch(strategy, file=os.devnull, refresh_seconds=3600.0) as watch:
        run(50)
        for _ in range(LOOKS):
            begin = time.thread_time()
            watch._tell(watch._look(), is_last=False)
            times.append(time.thread_time() - begin)
    return 1e6 * statistics.median(times)


def compare(devices: list[Any], size: int, rounds: int) -> dict[str, Any]:
    """The loop with and without a watch, in alternating rounds; and one look."""
    strategy, run = loop(devices, size)
    run(100)
    plain, watched, wall = [], [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        plain.append(host_us(run))
        wall.append(1e6 * (time.perf_counter() - begin) / (STEPS + WARM_UP))
        with rx.watch(strategy, file=os.devnull, live=False, refresh_seconds=3600.0):
            watched.append(host_us(run))
    differences = [ours - theirs for ours, theirs in zip(watched, plain, strict=True)]
    more = statistics.median(differences)
    look = look_us(strategy, run)
    return {
        "replicas": len(devices),
        "size": size,
        "step_wall_us": round(statistics.median(wall), 1),
        "plain_host_us": round(statistics.median(plain), 1),
        "watched_host_us": round(statistics.median(watched), 1),
        "more_host_us": round(more, 2),
        "more_host_us_95": [round(one, 2) for one in median_interval(differences)],
        "look_us": round(look, 1),
        # A look each second takes as many microseconds from a second as from 1,000 such steps.
        "share_of_a_1_ms_step": round((more + look / 1000) / 1000, 4),
    }


def main() -> None:
    """Prints one JSON object per number of replicas."""
    options = parse_options(__doc__, replicas=[1, 2], sizes=[16, 128])
    rx.set_virtual_devices(max(options.replicas))
    for replicas in options.replicas:
        for size in options.sizes:
            row = compare(jax.devices()[:replicas], size, options.rounds)
            print(json.dumps(row | environment()), file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
