"""How much memory does a device need for a step, with its state whole and split in three stages?

An Adam step of a multilayer perceptron over all virtual devices, compiled without and with
`Sharding`. One JSON object is printed for each: bytes on one device from XLA's analysis of the
compiled program, for its arguments (parameters, slots, the batch), its temporaries and what it
returns that is no donated argument; the ratio of the arguments to those without sharding; and
how many collectives of each kind the program has.

Usage: python benchmarks/sharding.py [--replicas 8] [--width 512] [--layers 4]
"""

from __future__ import annotations

import argparse
import collections
import json
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from alternating import environment

import replicax as rx

BATCH_PER_REPLICA = 4
COLLECTIVES = r"= (?:\S+|\(.*?\)) (all-gather|reduce-scatter|all-reduce)(?:-start)?\("


def compiled_step(strategy: rx.MirroredStrategy, width: int, layers: int) -> Any:
    """The compiled step of one strategy."""
    with strategy.scope():
        params = rx.variables_from(
            [{"w": np.zeros((width, width), np.float32), "b": np.zeros(width, np.float32)}] * layers
        )
        optimizer = rx.Optimizer(optax.adam(1e-3))
    optimizer.build(params)
    global_batch = BATCH_PER_REPLICA * strategy.num_replicas_in_sync

    @rx.function
    def step(x: Any) -> None:
        def loss() -> Any:
            y = x
            for layer in params:
                y = jnp.tanh(y @ layer["w"] + layer["b"])
            return (y * y).sum() / global_batch

        optimizer.apply_gradients([(rx.grad(loss, params), params)])

    batch = strategy.distribute_batch(np.ones((global_batch, width), np.float32))
    return step.lower_run(strategy, batch).compile()


def main() -> None:
    """Prints one line for each stage; stage 0 has everything whole."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("replicas", 8), ("width", 512), ("layers", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    rx.set_virtual_devices(options.replicas)
    whole = 0
    for stage in range(4):
        sharding = rx.experimental.Sharding(stage=stage) if stage else None
        compiled = compiled_step(
            rx.MirroredStrategy(sharding=sharding), options.width, options.layers
        )
        memory = compiled.memory_analysis()
        arguments = memory.argument_size_in_bytes
        whole = whole or arguments
        found = collections.Counter(re.findall(COLLECTIVES, compiled.as_text()))
        row = {
            "stage": stage,
            "argument_bytes": arguments,
            "argument_ratio": round(arguments / whole, 3),
            "temporary_bytes": memory.temp_size_in_bytes,
            "new_output_bytes": memory.output_size_in_bytes - memory.alias_size_in_bytes,
            "collectives": dict(found),
        }
        print(json.dumps({**vars(options), **row, "environment": environment()}), flush=True)


if __name__ == "__main__":
    main()
