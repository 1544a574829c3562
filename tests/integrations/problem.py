"""What models of every library are trained on, and by which optimizers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

BATCHES = (24, 13, 1)  # rows of the batches, in turns: of the last, one replica has all

INPUTS = {
    "mlp": lambda random, rows: random.randn(rows, 6).astype(np.float32),
    "convnet": lambda random, rows: random.randn(rows, 5, 5, 1).astype(np.float32),
    "gpt": lambda random, rows: random.randint(0, 8, (rows, 5)).astype(np.int32),
}
"""Models of the same names are in the module of each library."""

OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.05, momentum=0.9),
    "adamw": lambda: optax.adamw(0.01, eps=1e-3),
    "schedule": lambda: optax.chain(
        optax.clip_by_global_norm(0.5), optax.sgd(optax.cosine_decay_schedule(0.1, 40))
    ),
}


def batches(name, steps):
    random = np.random.RandomState(0)
    for step in range(steps):
        x = INPUTS[name](random, BATCHES[step % len(BATCHES)])
        yield x, random.randint(0, 3, len(x)).astype(np.int32)


def loss_of(logits, y, rows):
    """The part of these rows in the loss of a global batch of `rows`."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).sum() / rows


def train_on(strategy, make_step, name, steps, *, wrap):
    """The losses of `steps` steps; ``make_step(rows)`` is a step for batches of so many rows."""
    step_for, losses = {}, []
    for x, y in batches(name, steps):
        if len(x) not in step_for:
            step_for[len(x)] = wrap(make_step(len(x)))
        loss = strategy.run(step_for[len(x)], args=strategy.distribute_batch((x, y)))
        losses.append(float(strategy.reduce("SUM", loss, axis=None)))
    return losses


def train_by_shares(grad, apply, params, statistics, name, steps, shares):
    """The loop of one device: each share of a batch has its own statistics.

    Args:
        grad: Gives the loss, the new statistics and the gradients of one share, from parameters,
            statistics, inputs, labels and rows of the whole batch.
        apply: Gives the new parameters from these and their gradients.
        params: The parameters.
        statistics: The statistics, for each share.
        name: Which problem.
        steps: How many steps.
        shares: Into how many parts a batch is divided.
    """
    statistics, losses = [statistics] * shares, []
    for x, y in batches(name, steps):
        size = -(-len(x) // shares)
        totals, loss = None, 0.0
        for share in range(shares):
            part = slice(share * size, (share + 1) * size)
            if not len(x[part]):
                continue
            part_loss, statistics[share], grads = grad(
                params, statistics[share], x[part], y[part], len(x)
            )
            loss += part_loss
            totals = grads if totals is None else jax.tree.map(jnp.add, totals, grads)
        params = apply(params, totals)
        losses.append(float(loss))
    return params, jax.tree.map(mean_of, *statistics), losses


def mean_of(*values):
    """What a read of statistics gives: the mean of floats, the first of anything else."""
    is_float = jnp.issubdtype(jnp.result_type(values[0]), jnp.inexact)
    return sum(values) / len(values) if is_float else values[0]


def numbers_of(*trees):
    """All arrays of trees by their paths, on the host."""
    pairs = jax.tree_util.tree_leaves_with_path(trees)
    arrays = [(path, leaf) for path, leaf in pairs if hasattr(leaf, "dtype")]
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in arrays}


def assert_close(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=tolerance, atol=tolerance, err_msg=path)
