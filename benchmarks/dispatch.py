"""What do a step, and reading its result, cost beyond the hand-written ones?

The same training step, twice: written by hand with jit, shard_map and donation, and
with ``function`` and ``run``. Both add small gradients in one collective. The two
are timed in alternating rounds of one process; one JSON object is printed for each
number of replicas and of variables. Wall and CPU time are per step, in microseconds,
medians over the rounds; the ratio is of medians.

Then what a loop does to log a loss that is there: look at the scalar of each replica, and add them
up to a float. By hand the shards of the array are the scalars, and `jnp.sum` adds them.

Usage: python benchmarks/dispatch.py [--rounds 15] [--replicas 1 2 4 8] [--variables 4 500]
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from alternating import Times, alternate, compared, environment, parse_options
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import replicax as rx

SIZE = 8
LEARNING_RATE = 1e-3
READS = 40  # a round of them


def hand_written(devices: Sequence[Any], num_variables: int) -> Callable[[], Any]:
    """The step in plain JAX; returns a function that runs one step."""
    mesh = Mesh(np.asarray(devices), ("replica",), axis_types=(AxisType.Auto,))
    replicated = NamedSharding(mesh, PartitionSpec())
    divided = NamedSharding(mesh, PartitionSpec("replica"))
    count = len(devices)
    weights = [
        jax.device_put(np.full((SIZE,), 1.0 + i, np.float32), replicated)
        for i in range(num_variables)
    ]
    batch = jax.device_put(np.ones((count, SIZE), np.float32), divided)

    def replica(weights: list[Any], x: Any) -> tuple[list[Any], Any]:
        gradients = [w * x.mean(0) for w in weights]
        flat = jax.lax.psum(jnp.concatenate(gradients), "replica")
        parts = jnp.split(flat, num_variables)
        new = [w - LEARNING_RATE * g for w, g in zip(weights, parts, strict=True)]
        return new, flat[:1]

    mapped = jax.shard_map(
        replica,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec("replica")),
        out_specs=(PartitionSpec(), PartitionSpec("replica")),
        check_vma=False,
    )
    step = jax.jit(mapped, donate_argnums=0)
    state = [weights]

    def run() -> Any:
        state[0], out = step(state[0], batch)
        return out

    return run


def with_replicax(devices: Sequence[Any], num_variables: int) -> Callable[[], Any]:
    """The step with ``function`` and ``run``; returns a function that runs one step."""
    strategy = rx.MirroredStrategy(devices)
    with strategy.scope():
        weights = [rx.Variable(np.full((SIZE,), 1.0 + i, np.float32)) for i in range(num_variables)]
    batch = strategy.distribute_batch(np.ones((len(devices), SIZE), np.float32))

    def update(strategy: Any, gradients: list[Any]) -> None:
        for weight, gradient in zip(weights, gradients, strict=True):
            strategy.extended.update(
                weight, lambda w, g: w.assign_sub(LEARNING_RATE * g), args=(gradient,)
            )

    @rx.function
    def step(x: Any) -> Any:
        context = rx.get_replica_context()
        gradients = [w * x.mean(0) for w in weights]
        total = context.all_reduce(rx.ReduceOp.SUM, gradients)
        context.merge_call(update, args=(total,))
        return total[0][:1]

    def run() -> Any:
        return packed(strategy.run(step, args=(batch,)))

    return run


def packed(result: Any) -> Any:
    """What a step returned as one array; of a single replica it is one."""
    return result._as_packed() if isinstance(result, rx.PerReplica) else result


def compare(devices: Sequence[Any], num_variables: int, rounds: int) -> dict[str, Any]:
    """Both steps, in alternating rounds."""
    runs = {
        "hand_written": hand_written(devices, num_variables),
        "replicax": with_replicax(devices, num_variables),
    }
    steps = 200 if num_variables < 100 else 40
    times = alternate(runs, steps=steps, warm_up=20, rounds=rounds)
    row: dict[str, Any] = {"replicas": len(devices), "variables": num_variables}
    return row | compared(times, "replicax", "hand_written")


def compare_reading(devices: Sequence[Any], rounds: int) -> list[dict[str, Any]]:
    """What it costs to read the loss of a step, in alternating rounds."""
    strategy = rx.MirroredStrategy(devices)
    loss = rx.function(lambda x: x.sum())
    batch = strategy.distribute_batch(np.ones((len(devices), SIZE), np.float32))
    results: list[Any] = []

    def array() -> Any:
        return packed(results.pop())

    def shards() -> list[Any]:
        return [shard.data.reshape(()) for shard in array().addressable_shards]

    readings: dict[str, dict[str, Callable[[], Any]]] = {
        "local results": {
            "hand_written": shards,
            "replicax": lambda: strategy.experimental_local_results(results.pop()),
        },
        "reduce": {
            "hand_written": lambda: float(jnp.sum(array())),
            "replicax": lambda: float(strategy.reduce("SUM", results.pop(), axis=None)),
        },
    }
    rows = []
    for reading, runs in readings.items():
        times: Times = {name: [] for name in runs}
        for round_ in range(rounds + 1):
            for name, run in runs.items():
                results.extend(strategy.run(loss, args=(batch,)) for _ in range(READS))
                for result in results:
                    jax.block_until_ready(packed(result))
                wall, cpu = time.perf_counter(), time.process_time()
                for _ in range(READS):
                    run()
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                if round_:  # the first one warms up
                    times[name].append((1e6 * wall / READS, 1e6 * cpu / READS))
        row = {"replicas": len(devices), "reading": reading}
        rows.append(row | compared(times, "replicax", "hand_written"))
    return rows


def main() -> None:
    """Prints one JSON object per configuration."""
    options = parse_options(__doc__, replicas=[1, 2, 4, 8], variables=[4, 500])
    rx.set_virtual_devices(max(options.replicas))
    for num_variables in options.variables:
        for replicas in options.replicas:
            row = compare(jax.devices()[:replicas], num_variables, options.rounds)
            print(json.dumps(row | environment()), flush=True)
    for replicas in options.replicas:
        for row in compare_reading(jax.devices()[:replicas], options.rounds):
            print(json.dumps(row | environment()), flush=True)


if __name__ == "__main__":
    main()
