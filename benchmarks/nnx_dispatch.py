"""What does a step of a Flax NNX model cost, beside the same step with variables of Replicax?

Both train the same vectors with the same Optax transformation: one as the parameters of a module,
by ``nnx.Optimizer``, the other as variables, by ``rx.Optimizer``. The two are timed in alternating
rounds of one process; one JSON object is printed for each number of replicas and of variables.
Wall and CPU time are per step, in microseconds, medians over the rounds; the ratio is of medians.

Usage: python benchmarks/nnx_dispatch.py [--rounds 15] [--replicas 1 2 8] [--variables 50 300]
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from alternating import alternate, compared, environment, parse_options
from flax import nnx

import replicax as rx

SIZE = 8
RATE = 1e-3


def loss_of(weights: list[Any], x: Any) -> Any:
    """Something that depends on all weights alike."""
    return jnp.sum(jnp.stack([w * x.mean(0) for w in weights]))


def with_variables(strategy: Any, num_variables: int) -> Callable[[Any], Any]:
    """The step with variables."""
    with strategy.scope():
        weights = rx.variables_from([np.full(SIZE, 1.0 + i, "f4") for i in range(num_variables)])
        optimizer = rx.Optimizer(optax.sgd(RATE))

    @rx.function
    def step(x: Any) -> Any:
        loss, gradients = rx.value_and_grad(lambda: loss_of(weights, x), weights)
        optimizer.apply_gradients([(gradients, weights)])
        return loss

    return step


class Model(nnx.Module):
    """A parameter for each variable."""

    def __init__(self, num_variables: int) -> None:
        self.weights = nnx.List([nnx.Param(jnp.full(SIZE, 1.0 + i)) for i in range(num_variables)])

    def __call__(self, x: Any) -> Any:
        return loss_of([weight[...] for weight in self.weights], x)


def with_nnx(strategy: Any, num_variables: int) -> Callable[[Any], Any]:
    """The step with a module."""
    with strategy.scope():
        model = Model(num_variables)
        optimizer = nnx.Optimizer(model, optax.sgd(RATE), wrt=nnx.Param)

    @rx.function
    def step(x: Any) -> Any:
        loss, gradients = nnx.value_and_grad(lambda model, x: model(x))(model, x)
        optimizer.update(model, gradients)
        return loss

    return step


def compare(replicas: int, num_variables: int, rounds: int) -> dict[str, Any]:
    """Both steps, in alternating rounds."""
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    batch = strategy.distribute_batch(np.ones((replicas, SIZE), np.float32))

    def run_of(step: Callable[[Any], Any]) -> Callable[[], Any]:
        def run() -> Any:
            result = strategy.run(step, args=(batch,))
            return result._as_packed() if isinstance(result, rx.PerReplica) else result

        return run

    runs = {
        "variables": run_of(with_variables(strategy, num_variables)),
        "nnx": run_of(with_nnx(strategy, num_variables)),
    }
    steps = 200 if num_variables < 100 else 60
    times = alternate(runs, steps=steps, warm_up=20, rounds=rounds)
    row: dict[str, Any] = {"replicas": replicas, "variables": num_variables}
    return row | compared(times, "nnx", "variables")


def main() -> None:
    """Prints one JSON object per configuration."""
    options = parse_options(__doc__, replicas=[1, 2, 8], variables=[50, 300])
    rx.set_virtual_devices(max(options.replicas))
    for num_variables in options.variables:
        for replicas in options.replicas:
            row = compare(replicas, num_variables, options.rounds)
            print(json.dumps(row | environment()), flush=True)


if __name__ == "__main__":
    main()
