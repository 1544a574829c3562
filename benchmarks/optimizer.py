"""What does a step with `Optimizer` cost beyond the hand-written one, and what does packing save?

The same Adam step, three times: Optax by hand with jit, shard_map, donation and one
packed psum; ``Optimizer(optax.adam)`` with ``function`` and ``run``; and the latter
with packing off. They are timed in alternating rounds of one process; one JSON object
is printed for each number of replicas and of variables. Wall and CPU time are per
step, in microseconds, medians over the rounds; ratios are medians of the rounds'
ratios: of `Optimizer` to the hand-written step, and of unpacked to packed.

Usage: python benchmarks/optimizer.py [--rounds 15] [--replicas 1 2 4 8] [--variables 4 100]
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from alternating import KINDS, alternate, environment, median, paired_ratio, parse_options
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import replicax as rx
from replicax.optimizers.optimizer import Optimizer

SIZE = 64


def initial(num_variables: int) -> list[np.ndarray]:
    """The values that every kind of step starts from."""
    return [np.full((SIZE,), 1.0 + i, np.float32) for i in range(num_variables)]


def hand_written(devices: Sequence[Any], num_variables: int) -> Callable[[], Any]:
    """The step in plain JAX and Optax; returns a function that runs one step."""
    mesh = Mesh(np.asarray(devices), ("replica",), axis_types=(AxisType.Auto,))
    replicated = NamedSharding(mesh, PartitionSpec())
    divided = NamedSharding(mesh, PartitionSpec("replica"))
    transformation = optax.adam(1e-3)
    weights = [jax.device_put(value, replicated) for value in initial(num_variables)]
    state = jax.device_put(transformation.init(weights), replicated)
    batch = jax.device_put(np.ones((len(devices), SIZE), np.float32), divided)

    def replica(weights: list[Any], state: Any, x: Any) -> tuple[list[Any], Any, Any]:
        gradients = [w * x.mean(0) for w in weights]
        flat = jax.lax.psum(jnp.concatenate(gradients), "replica")
        parts = jnp.split(flat, num_variables)
        updates, state = transformation.update(parts, state, weights)
        return optax.apply_updates(weights, updates), state, gradients[0][:1]

    mapped = jax.shard_map(
        replica,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(), PartitionSpec("replica")),
        out_specs=(PartitionSpec(), PartitionSpec(), PartitionSpec("replica")),
        check_vma=False,
    )
    step = jax.jit(mapped, donate_argnums=(0, 1))
    held = [weights, state]

    def run() -> Any:
        held[0], held[1], out = step(held[0], held[1], batch)
        return out

    return run


def with_optimizer(
    devices: Sequence[Any], num_variables: int, ops: Any = None
) -> Callable[[], Any]:
    """The step with `Optimizer`; returns a function that runs one step."""
    strategy = rx.MirroredStrategy(devices, cross_device_ops=ops)
    with strategy.scope():
        weights = [rx.Variable(value) for value in initial(num_variables)]
        optimizer = Optimizer(optax.adam(1e-3))
        optimizer.build(weights)
    batch = strategy.distribute_batch(np.ones((len(devices), SIZE), np.float32))

    @rx.function
    def step(x: Any) -> Any:
        gradients = [w * x.mean(0) for w in weights]
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return gradients[0][:1]

    def run() -> Any:
        result = strategy.run(step, args=(batch,))
        return result._as_packed() if isinstance(result, rx.PerReplica) else result

    return run


def compare(devices: Sequence[Any], num_variables: int, rounds: int) -> dict[str, Any]:
    """All three steps, in alternating rounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rx.ReplicaxWarning)  # that NcclAllReduce is the default
        unpacked = with_optimizer(devices, num_variables, rx.NcclAllReduce(num_packs=0))
    runs = {
        "hand_written": hand_written(devices, num_variables),
        "optimizer": with_optimizer(devices, num_variables),
        "unpacked": unpacked,
    }
    steps = 100 if num_variables < 100 else 30
    times = alternate(runs, steps=steps, warm_up=10, rounds=rounds)
    row: dict[str, Any] = {"replicas": len(devices), "variables": num_variables}
    for kind in KINDS:
        row |= {f"{name}_{kind}": round(median(times, name, kind), 1) for name in runs}
        for label, (ours, theirs) in {
            "ratio": ("optimizer", "hand_written"),
            "unpacked_ratio": ("unpacked", "optimizer"),
        }.items():
            row[f"{label}_{kind}"] = round(paired_ratio(times, ours, theirs, kind), 3)
    return row


def main() -> None:
    """Prints one JSON object per configuration."""
    options = parse_options(__doc__, replicas=[1, 2, 4, 8], variables=[4, 100])
    rx.set_virtual_devices(max(options.replicas))
    for num_variables in options.variables:
        for replicas in options.replicas:
            row = compare(jax.devices()[:replicas], num_variables, options.rounds)
            print(json.dumps(row | environment()), flush=True)


if __name__ == "__main__":
    main()
