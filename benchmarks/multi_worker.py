"""What does a training step on two workers cost beyond the hand-written one?

The step of a small MLP (784-512-512-10, global batch 256, SGD with momentum), twice: written by
hand with jit and shard_map over the devices of all processes, small gradients packed, and with
`MultiWorkerMirroredStrategy`. Both run in the same processes, in alternating rounds; the first
worker prints one JSON object. Wall and CPU time are per step, in microseconds.

Usage: python benchmarks/multi_worker.py [--rounds 15] [--workers 2] [--devices 1]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from alternating import alternate, compared, environment
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import replicax as rx
from replicax.cluster.addresses import free_ports

SIZES = (784, 512, 512, 10)
GLOBAL_BATCH = 256
LEARNING_RATE, MOMENTUM = 1e-2, 0.9
STEPS = 20
PACKED_BELOW = 16_384


def initial() -> list[np.ndarray]:
    """Weights and biases, the same on every worker."""
    rng = np.random.default_rng(0)
    params = []
    for rows, columns in itertools.pairwise(SIZES):
        params.append((rng.normal(size=(rows, columns)) / np.sqrt(rows)).astype(np.float32))
        params.append(np.zeros(columns, np.float32))
    return params


def data() -> tuple[np.ndarray, np.ndarray]:
    """One global batch."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(GLOBAL_BATCH, SIZES[0])).astype(np.float32)
    return x, rng.integers(0, SIZES[-1], GLOBAL_BATCH).astype(np.int32)


def loss_of(params: list[Any], x: Any, y: Any) -> Any:
    """This replica's part of the mean loss over the global batch."""
    for weights, bias in zip(params[0:-2:2], params[1:-2:2], strict=True):
        x = jax.nn.relu(x @ weights + bias)
    logits = jax.nn.log_softmax(x @ params[-2] + params[-1])
    return -jnp.take_along_axis(logits, y[:, None], axis=1).sum() / GLOBAL_BATCH


def hand_written() -> Callable[[], Any]:
    """The step in plain JAX over the devices of all processes."""
    mesh = Mesh(np.asarray(jax.devices()), ("replica",), axis_types=(AxisType.Auto,))
    replicated = NamedSharding(mesh, PartitionSpec())
    divided = NamedSharding(mesh, PartitionSpec("replica"))

    def everywhere(array: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(array.shape, replicated, lambda _: array.copy())

    def part(array: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(array.shape, divided, lambda index: array[index])

    params = [everywhere(array) for array in initial()]
    velocity = [everywhere(np.zeros_like(array)) for array in initial()]
    x, y = map(part, data())

    def summed(gradients: list[Any]) -> list[Any]:
        small = [i for i, g in enumerate(gradients) if g.size < PACKED_BELOW]
        flat = jax.lax.psum(jnp.concatenate([gradients[i].ravel() for i in small]), "replica")
        offsets = np.cumsum([gradients[i].size for i in small])[:-1].tolist()
        parts = dict(zip(small, jnp.split(flat, offsets), strict=True))
        return [
            parts[i].reshape(g.shape) if i in parts else jax.lax.psum(g, "replica")
            for i, g in enumerate(gradients)
        ]

    def replica(params: list[Any], velocity: list[Any], x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        gradients = summed(gradients)
        velocity = [MOMENTUM * v + g for v, g in zip(velocity, gradients, strict=True)]
        params = [p - LEARNING_RATE * v for p, v in zip(params, velocity, strict=True)]
        return params, velocity, loss[None]

    whole, own = PartitionSpec(), PartitionSpec("replica")
    mapped = jax.shard_map(
        replica,
        mesh=mesh,
        in_specs=(whole, whole, own, own),
        out_specs=(whole, whole, own),
        check_vma=False,
    )
    step = jax.jit(mapped, donate_argnums=(0, 1))
    state = [params, velocity]

    def run() -> Any:
        state[0], state[1], loss = step(*state, x, y)
        return loss

    return run


def with_replicax(strategy: rx.Strategy) -> Callable[[], Any]:
    """The step with ``function`` and ``run``."""
    with strategy.scope():
        params = [rx.Variable(array) for array in initial()]
        velocity = [rx.Variable(np.zeros_like(array)) for array in initial()]
    batch = strategy.distribute_batch(data())

    def update(strategy: Any, gradients: list[Any]) -> None:
        for variable, slot, gradient in zip(params, velocity, gradients, strict=True):
            strategy.extended.update(slot, lambda v, g: v.assign(MOMENTUM * v + g), (gradient,))
            strategy.extended.update(
                variable, lambda p, v: p.assign_sub(LEARNING_RATE * v), (slot,)
            )

    @rx.function
    def step(x: Any, y: Any) -> Any:
        loss, gradients = rx.value_and_grad(lambda: loss_of(params, x, y), params)
        context = rx.get_replica_context()
        gradients = context.all_reduce(rx.ReduceOp.SUM, gradients)
        context.merge_call(update, args=(gradients,))
        return loss

    def run() -> Any:
        return strategy.run(step, args=batch)._as_packed()

    return run


def work(rounds: int) -> None:
    """What each worker runs."""
    options = rx.experimental.CommunicationOptions(timeout_seconds=120)
    strategy = rx.MultiWorkerMirroredStrategy(communication_options=options)
    runs = {"hand_written": hand_written(), "replicax": with_replicax(strategy)}
    losses = {}
    for name, run in runs.items():
        for _ in range(5):
            own = [np.asarray(shard.data) for shard in run().addressable_shards]
        losses[name] = float(np.sum(own))
    np.testing.assert_allclose(losses["replicax"], losses["hand_written"], rtol=1e-4)
    times = alternate(runs, steps=STEPS, warm_up=STEPS, rounds=rounds)
    if not strategy.is_chief:
        return
    extended = strategy.extended
    row: dict[str, Any] = {
        "workers": strategy.num_replicas_in_sync // len(extended.worker_devices),
        "devices": len(extended.worker_devices),
    }
    row |= compared(times, "replicax", "hand_written")
    print(json.dumps(row | environment()), flush=True)


def main() -> None:
    """Starts the workers; in a worker, does the work."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--devices", type=int, default=1)
    options = parser.parse_args()
    if "TF_CONFIG" in os.environ:
        work(options.rounds)
        return
    addresses = [f"127.0.0.1:{port}" for port in free_ports(options.workers)]
    processes = []
    for index in range(options.workers):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        variables = {
            "TF_CONFIG": json.dumps(config),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(options.devices),
            "NPROC": str(3 * options.devices),
        }
        command = [sys.executable, *sys.argv]
        processes.append(subprocess.Popen(command, env=os.environ | variables))
    codes = [process.wait() for process in processes]
    sys.exit(max(map(abs, codes)))


if __name__ == "__main__":
    main()
