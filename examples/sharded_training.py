"""The same training with its state whole on every replica, and split over them in two ways.

A classifier of points on spirals, trained by LAMB, whose steps need the norm of whole parameters,
with clipped gradients. The program is the same each time; only the strategy differs. Run it with:
python examples/sharded_training.py
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

NUM_REPLICAS = 4
BATCH = 64
STEPS = 25


def spirals(seed):
    """Points on three spirals, and which of them each point is on."""
    random = np.random.default_rng(seed)
    label = random.integers(0, 3, BATCH)
    radius = random.uniform(0.1, 1.0, BATCH)
    angle = 4.0 * radius + label * 2.0 * np.pi / 3.0
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    return points.astype(np.float32), label.astype(np.int32)


def initial():
    random = np.random.default_rng(0)
    sizes = [2, 50, 3]
    return [
        {
            "kernel": (random.normal(size=(m, n)) / np.sqrt(m)).astype(np.float32),
            "bias": np.zeros(n, np.float32),
        }
        for m, n in itertools.pairwise(sizes)
    ]


def logits_of(params, x):
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["kernel"] + layer["bias"])
    return x @ params[-1]["kernel"] + params[-1]["bias"]


def train(strategy, steps=STEPS):
    """The parameters and the losses, and the bytes that a device has as arguments of a step."""
    with strategy.scope():
        params = rx.variables_from(initial())
        optimizer = rx.Optimizer(optax.lamb(0.02), clip_global_norm=1.0)
    optimizer.build(params)

    @rx.function
    def step(points, labels):
        def loss():
            chosen = jax.nn.log_softmax(logits_of(params, points)) * jax.nn.one_hot(labels, 3)
            return -chosen.sum() / BATCH

        value, gradients = rx.value_and_grad(loss, params)
        optimizer.apply_gradients([(gradients, params)])
        return value

    losses = []
    for seed in range(steps):
        batch = strategy.distribute_batch(spirals(seed))
        losses.append(float(strategy.reduce("SUM", strategy.run(step, args=batch), axis=None)))
    memory = step.lower_run(strategy, *batch).compile().memory_analysis()
    return rx.values_of(params), losses, memory.argument_size_in_bytes


def difference(params, others):
    """The largest difference between two trees of parameters."""
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(others), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


def main():
    rx.set_virtual_devices(NUM_REPLICAS)
    whole, losses, all_bytes = train(rx.MirroredStrategy())
    print(f"whole:   loss {losses[0]:.3f} -> {losses[-1]:.3f}, {all_bytes} bytes on a device")
    for stage in (1, 3):
        strategy = rx.MirroredStrategy(sharding=rx.experimental.Sharding(stage=stage))
        params, losses, some_bytes = train(strategy)
        print(
            f"stage {stage}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, {some_bytes} bytes, "
            f"parameters differ by {difference(params, whole):.1e}"
        )


if __name__ == "__main__":
    main()
