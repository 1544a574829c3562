"""The same work in Replicax, written as its documentation does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx
from benchmarks import models, problems
from benchmarks.peers import sources
from benchmarks.peers.hand_written import LOOP
from benchmarks.timing import Step
from benchmarks.worker import Assignment
from replicax.engine.functions.program import LARGEST_TOKEN


def strategy_of(assignment: Assignment) -> rx.Strategy:
    """Over all devices of this process, or of all processes."""
    if assignment.processes > 1:
        return rx.MultiWorkerMirroredStrategy(
            communication_options=rx.experimental.CommunicationOptions(timeout_seconds=120)
        )
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(assignment.replicas)])


def array_of(value: Any) -> jax.Array:
    """The array behind a distributed value."""
    if isinstance(value, rx.PerReplica):
        return value._as_packed()
    return value._replicated() if isinstance(value, rx.Mirrored) else value


def wait(value: Any) -> None:
    """Until a result is there."""
    array_of(value).block_until_ready()


def read(value: Any) -> float:
    """The sum of the losses of this process's replicas."""
    shards = array_of(value).addressable_shards
    return float(sum(np.asarray(shard.data).sum() for shard in shards))


def read_first(value: Any) -> float:
    """What all replicas say alike."""
    return float(np.asarray(value).ravel()[0])


def empty_step(assignment: Assignment, variant: str) -> Step:
    """W1."""
    strategy = strategy_of(assignment)
    variable, factors = problems.empty_step(assignment.replicas)
    with strategy.scope():
        w = rx.Variable(variable)
    x = strategy.distribute_batch(factors)

    def total_of(x: Any) -> Any:
        return rx.get_replica_context().all_reduce("SUM", jnp.sum(w * x))

    def one_step(x: Any) -> Any:
        total = strategy.run(total_of, args=(x,))
        w.assign(w - problems.EMPTY_RATE * total)
        return total

    def many_steps(x: Any) -> Any:
        def body(carry: Any, _: Any) -> tuple[Any, Any]:
            return carry, one_step(x)

        _, totals = jax.lax.scan(body, None, length=LOOP)
        return totals[-1]

    is_loop = variant == "64 steps"
    step = rx.function(many_steps if is_loop else one_step)
    return Step(lambda: step(x), read_first, wait, LOOP if is_loop else 1, is_bounded=True)


def train(assignment: Assignment, variant: str) -> Step:
    """W2, W3, W4 and W7."""
    strategy = strategy_of(assignment)
    problem = problems.problem_of(assignment.workload, variant)
    loss_of = models.loss_of(problem)
    with strategy.scope():
        params = rx.variables_from(problem.params)
        optimizer = rx.Optimizer(models.optimizer_of(problem))
    batch = strategy.distribute_batch(problem.batch)

    @rx.function
    def step(*batch: Any) -> Any:
        loss, gradients = rx.value_and_grad(lambda: loss_of(params, *batch), params)
        optimizer.apply_gradients([(gradients, params)])
        return loss

    return Step(lambda: strategy.run(step, args=batch), read, wait, is_bounded=True)


class Made:
    """Batches that somebody makes, over and over."""

    def __init__(self, make: sources.Make) -> None:
        self._make = make

    def __iter__(self) -> Iterator[np.ndarray]:
        return map(self._make, itertools.cycle(range(sources.NUM_BATCHES)))


def batches(assignment: Assignment, variant: str) -> Step:
    """W6: a distributed dataset alone, or in front of a step that looks at its loss."""
    strategy = strategy_of(assignment)
    if variant in sources.SLOW:
        data: Any = Made(sources.maker(variant))
    else:
        rows = np.concatenate(problems.ready_batches())
        size = problems.BATCH_SHAPE[0]
        data = rx.data.Dataset.from_tensor_slices(rows).batch(size).repeat()
    iterator = iter(strategy.experimental_distribute_dataset(data))
    if variant == "batches":
        return Step(
            lambda: next(iterator),
            lambda value: sources.read_corner(array_of(value)),
            wait,
            close=iterator.close,
        )
    with strategy.scope():
        w = rx.Variable(sources.weights())

    def replica_step(x: Any) -> Any:
        loss, gradient = rx.value_and_grad(lambda: sources.loss(w, x), w)
        return rx.get_replica_context().all_reduce("MEAN", (loss, gradient))

    @rx.function
    def step(x: Any) -> Any:
        loss, gradient = strategy.run(replica_step, args=(x,))
        w.assign_sub(sources.RATE * gradient)
        return loss

    return Step(lambda: float(step(next(iterator))), float, close=iterator.close)


def reduce(assignment: Assignment, variant: str) -> Step:
    """W8."""
    strategy = strategy_of(assignment)
    size = problems.megabytes(variant)
    x = strategy.distribute_batch(np.ones((assignment.replicas * size,), np.float32))
    if variant.startswith("reduce"):
        return Step(lambda: strategy.reduce("SUM", x, axis=None), read_first, wait)

    @rx.function
    def total(x: Any) -> Any:
        return rx.get_replica_context().all_reduce("SUM", x)

    def first(value: Any) -> float:
        return read_first(strategy.experimental_local_results(value)[0])

    # The results are as large as what is measured, and both peers keep eight of them. Small ones
    # Replicax keeps itself, to know when a step is done; of larger ones the loop has to.
    is_small = 4 * size <= LARGEST_TOKEN
    return Step(lambda: strategy.run(total, args=(x,)), first, wait, is_bounded=is_small)


def dispatch(assignment: Assignment, variant: str) -> Step:
    """W10: a step without computation, over so many variables and arguments."""
    if variant == "replicas":
        return empty_step(assignment, "dispatch")
    strategy = strategy_of(assignment)
    num_variables, num_arguments = sources.dispatch_sizes(variant)
    with strategy.scope():
        variables = [rx.Variable(np.zeros(2, np.float32)) for _ in range(num_variables)]
    ones = np.ones(2 * assignment.replicas, np.float32)
    arguments = strategy.distribute_batch([ones] * num_arguments)

    def first(arguments: list[Any]) -> Any:
        return arguments[0]

    @rx.function
    def step(arguments: list[Any]) -> Any:
        for variable in variables:
            variable.assign(variable + 1.0)
        return strategy.run(first, args=(arguments,))

    def read_variable(out: Any) -> float:
        return float(variables[0].numpy()[0])

    return Step(lambda: step(arguments), read_variable, wait, is_bounded=True)


STEPS = {
    "W1": empty_step,
    "W2": train,
    "W3": train,
    "W4": train,
    "W6": batches,
    "W7": train,
    "W8": reduce,
    "W9": batches,
    "W10": dispatch,
}
