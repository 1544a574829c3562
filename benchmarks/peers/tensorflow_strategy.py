"""The same work with TensorFlow's strategies, on plain variables in a tf.function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import problems
from benchmarks.peers import sources
from benchmarks.peers.hand_written import LOOP
from benchmarks.problems import MOMENTUM, Problem
from benchmarks.timing import Step
from benchmarks.worker import Assignment


@functools.cache  # the collectives of a second strategy would clash with those of the first
def strategy_of(assignment: Assignment) -> Any:
    """Mirrored over logical CPUs, or over the processes."""
    if assignment.processes > 1:
        return tf.distribute.MultiWorkerMirroredStrategy()
    (cpu,) = tf.config.list_physical_devices("CPU")
    if tf.config.get_logical_device_configuration(cpu) is None:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * assignment.replicas
        )
    devices = tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices])


def per_replica(strategy: Any, array: np.ndarray) -> Any:
    """An array, divided among the replicas along dim 0."""
    parts = np.split(array, strategy.num_replicas_in_sync)
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(parts[context.replica_id_in_sync_group])
    )


def local_sum(strategy: Any) -> Callable[[Any], float]:
    """Adds what the replicas of this process say."""
    return lambda value: float(
        sum(part.numpy() for part in strategy.experimental_local_results(value))
    )


def first(strategy: Any) -> Callable[[Any], float]:
    """What the replicas say alike."""
    return lambda value: float(np.ravel(strategy.experimental_local_results(value)[0].numpy())[0])


def empty_step(assignment: Assignment, variant: str) -> Step:
    """W1."""
    strategy = strategy_of(assignment)
    variable, factors = problems.empty_step(assignment.replicas)
    with strategy.scope():
        w = tf.Variable(variable)
    x = per_replica(strategy, factors)

    def replica(x: Any) -> Any:
        context = tf.distribute.get_replica_context()
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(w * x))
        w.assign_sub(problems.EMPTY_RATE * total * tf.ones_like(w))
        return total

    @tf.function
    def one(x: Any) -> Any:
        return strategy.run(replica, args=(x,))

    @tf.function
    def repeated(x: Any) -> Any:
        for _ in tf.range(LOOP - 1):
            strategy.run(replica, args=(x,))
        return strategy.run(replica, args=(x,))

    is_loop = variant == "64 steps"
    step = repeated if is_loop else one
    return Step(lambda: step(x), first(strategy), steps_per_run=LOOP if is_loop else 1)


def _norm(x: Any, scale: Any, bias: Any) -> Any:
    centred = x - tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), -1, keepdims=True)
    return centred * tf.math.rsqrt(variance + 1e-6) * scale + bias


def _attention(qkv: Any) -> Any:
    batch, length, _ = qkv.shape
    parts = tf.reshape(qkv, (batch, length, 3, problems.HEADS, -1))
    q, k, v = tf.unstack(tf.transpose(parts, (2, 0, 3, 1, 4)))
    scores = tf.matmul(q, k, transpose_b=True) / np.float32(np.sqrt(q.shape[-1]))
    mask = np.tril(np.ones((length, length), bool))
    scores = tf.where(mask, scores, -1e9)
    mixed = tf.transpose(tf.matmul(tf.nn.softmax(scores), v), (0, 2, 1, 3))
    return tf.reshape(mixed, (batch, length, -1))


def _transformer(params: Sequence[Any], tokens: Any) -> Any:
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = tf.gather(params[0], inputs) + params[1]
    for start in range(2, len(params) - 3, 10):
        scale, bias, qkv, out, scale_2, bias_2, up, up_bias, down, down_bias = params[
            start : start + 10
        ]
        x += _attention(_norm(x, scale, bias) @ qkv) @ out
        hidden = tf.nn.gelu(_norm(x, scale_2, bias_2) @ up + up_bias, approximate=True)
        x += hidden @ down + down_bias
    logits = _norm(x, params[-3], params[-2]) @ params[-1]
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    return tf.reduce_sum(losses) / problems.LENGTH


def _mlp(params: Sequence[Any], x: Any, y: Any) -> Any:
    for weights, bias in zip(params[0:-2:2], params[1:-2:2], strict=True):
        x = tf.nn.relu(x @ weights + bias)
    logits = x @ params[-2] + params[-1]
    return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


def _squares(params: Sequence[Any], x: Any) -> Any:
    squares = tf.add_n([p * p for p in params])
    return tf.reduce_sum(tf.math.log1p(tf.linalg.matvec(x, squares)))


LOSSES = {"mlp": _mlp, "transformer": _transformer, "squares": _squares}


def _updater(problem: Problem) -> Callable[[Sequence[Any], Sequence[Any]], None]:
    """Makes the slots, in the strategy's scope; each replica then updates its own copies."""
    zeros = [np.zeros_like(array) for array in problem.params]
    if problem.optimizer == "sgd":
        slots: list[list[Any]] = []
    else:
        slots = [[tf.Variable(z) for z in zeros] for _ in range(1 + (problem.optimizer == "adam"))]
    count = tf.Variable(0.0)
    b1, b2, eps = problems.ADAM.values()

    def update(params: Sequence[Any], gradients: Sequence[Any]) -> None:
        if problem.optimizer == "sgd":
            for p, g in zip(params, gradients, strict=True):
                p.assign_sub(problem.rate * g)
        elif problem.optimizer == "momentum":
            for p, g, v in zip(params, gradients, slots[0], strict=True):
                p.assign_sub(problem.rate * v.assign(MOMENTUM * v + g))
        else:
            t = count.assign_add(1.0)
            rate = problem.rate * tf.sqrt(1 - b2**t) / (1 - b1**t)
            for p, g, m, v in zip(params, gradients, *slots, strict=True):
                mean = m.assign(b1 * m + (1 - b1) * g)
                square = v.assign(b2 * v + (1 - b2) * g * g)
                p.assign_sub(rate * mean / (tf.sqrt(square) + eps))

    return update


def train(assignment: Assignment, variant: str) -> Step:
    """W2, W3, W4 and W7."""
    strategy = strategy_of(assignment)
    problem = problems.problem_of(assignment.workload, variant)
    loss_of = LOSSES[problem.model]
    with strategy.scope():
        params = [tf.Variable(array) for array in problem.params]
        update = _updater(problem)
    batch = tuple(per_replica(strategy, array) for array in problem.batch)

    def replica(*batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(params, *batch) / problem.num_examples
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, params)]
        context = tf.distribute.get_replica_context()
        update(params, context.all_reduce(tf.distribute.ReduceOp.SUM, gradients))
        return loss

    @tf.function
    def step(*batch: Any) -> Any:
        return strategy.run(replica, args=batch)

    return Step(lambda: step(*batch), local_sum(strategy))


def batches(assignment: Assignment, variant: str) -> Step:
    """W6."""
    strategy = strategy_of(assignment)
    if variant in sources.SLOW:
        make = sources.maker(variant)

        def endless() -> Any:
            index = 0
            while True:
                yield make(index % sources.NUM_BATCHES)
                index += 1

        spec = tf.TensorSpec(problems.BATCH_SHAPE, tf.float32)
        dataset = tf.data.Dataset.from_generator(endless, output_signature=spec).prefetch(2)
    else:
        stacked = np.stack(problems.ready_batches())
        dataset = tf.data.Dataset.from_tensor_slices(stacked).repeat().prefetch(2)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    iterator = iter(strategy.experimental_distribute_dataset(dataset.with_options(options)))
    if variant == "batches":
        return Step(lambda: next(iterator), first(strategy))
    with strategy.scope():
        w = tf.Variable(sources.weights())

    def replica(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.tanh(x @ w)))
        gradient = tape.gradient(loss, w)
        context = tf.distribute.get_replica_context()
        loss, gradient = context.all_reduce(tf.distribute.ReduceOp.MEAN, [loss, gradient])
        w.assign_sub(sources.RATE * gradient)
        return loss

    @tf.function
    def step(x: Any) -> Any:
        return strategy.run(replica, args=(x,))

    read = first(strategy)
    return Step(lambda: read(step(next(iterator))), float)


def reduce(assignment: Assignment, variant: str) -> Step:
    """W8."""
    strategy = strategy_of(assignment)
    size = problems.megabytes(variant)
    x = per_replica(strategy, np.ones((assignment.replicas * size,), np.float32))
    if variant.startswith("reduce"):
        return Step(
            lambda: strategy.reduce(tf.distribute.ReduceOp.SUM, x, axis=None),
            lambda value: float(value[0].numpy()),
        )

    def replica(x: Any) -> Any:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, x)

    @tf.function
    def total(x: Any) -> Any:
        return strategy.run(replica, args=(x,))

    return Step(lambda: total(x), first(strategy))


STEPS = {
    "W1": empty_step,
    "W2": train,
    "W3": train,
    "W4": train,
    "W6": batches,
    "W7": train,
    "W8": reduce,
}
