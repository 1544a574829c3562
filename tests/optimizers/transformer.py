"""A small transformer that learns to continue sequences, and its training.

Written as a plain function of a tree of arrays, so that JAX alone trains it too. Some of its
shapes do not divide by 8.
"""

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

VOCABULARY, LENGTH, WIDTH, HEADS, HIDDEN, LAYERS, BATCH = 19, 6, 12, 3, 20, 1, 16


def initial():
    """The parameters at the start."""
    random = np.random.default_rng(0)

    def matrix(*shape):
        return (random.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)

    layers = [
        {
            "qkv": matrix(WIDTH, 3 * WIDTH),
            "out": matrix(WIDTH, WIDTH),
            "up": matrix(WIDTH, HIDDEN),
            "up_bias": np.zeros(HIDDEN, np.float32),
            "down": matrix(HIDDEN, WIDTH),
            "scales": np.ones((2, WIDTH), np.float32),
        }
        for _ in range(LAYERS)
    ]
    return {
        "tokens": matrix(VOCABULARY, WIDTH),
        "positions": matrix(LENGTH, WIDTH),
        "layers": layers,
        "head": matrix(WIDTH, VOCABULARY),
    }


def _normed(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def _attended(x, layer):
    batch, length, width = x.shape
    qkv = (x @ layer["qkv"]).reshape(batch, length, 3, HEADS, width // HEADS)
    q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(width // HEADS)
    scores = jnp.where(np.tril(np.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    return mixed.reshape(batch, length, width) @ layer["out"]


def loss(params, tokens):
    """The sum over all sequences of the mean cross entropy of the next token."""
    x = params["tokens"][tokens[:, :-1]] + params["positions"][:]
    for layer in params["layers"]:
        scales = layer["scales"]
        x = x + _attended(_normed(x, scales[0]), layer)
        hidden = jax.nn.gelu(_normed(x, scales[1]) @ layer["up"] + layer["up_bias"])
        x = x + hidden @ layer["down"]
    logits = jax.nn.log_softmax(x @ params["head"])
    chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)
    return -chosen.mean(axis=(1, 2)).sum()


def batches(num_steps):
    """Sequences that count up from a random start in random steps."""
    random = np.random.default_rng(1)
    for _ in range(num_steps):
        start, stride = random.integers(0, VOCABULARY, size=(2, BATCH, 1))
        yield ((start + stride * np.arange(LENGTH + 1)) % VOCABULARY).astype(np.int32)


class Training:
    """The training of it under a strategy."""

    def __init__(self, strategy, transformation):
        self.strategy = strategy
        with strategy.scope():
            self.params = rx.variables_from(initial())
            self.optimizer = rx.Optimizer(transformation)
        self.step = rx.function(self._step)

    def _step(self, tokens):
        value, gradients = rx.value_and_grad(lambda: loss(self.params, tokens) / BATCH, self.params)
        self.optimizer.apply_gradients([(gradients, self.params)])
        return value

    def batch(self, tokens):
        return self.strategy.distribute_batch(tokens)

    def run(self, num_steps):
        """The parameters after so many steps, and the loss of each."""
        losses = []
        for tokens in batches(num_steps):
            value = self.strategy.run(self.step, args=(self.batch(tokens),))
            losses.append(float(self.strategy.reduce("SUM", value, axis=None)))
        return jax.tree.map(np.asarray, rx.values_of(self.params)), losses

    def compiled(self):
        """The compiled step."""
        (tokens,) = batches(1)
        return self.step.lower_run(self.strategy, self.batch(tokens)).compile()
