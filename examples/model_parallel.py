"""A small transformer, 2-way data parallel and 4-way model parallel.

Every replica spans four logical devices. A table of rules says, by name, how the weights are
divided among these: attention by heads, the feed-forward layers by their hidden units, the
embedding by words. The model itself is ordinary code that knows nothing of it, and what it learns
is what one device learns. Run it with: python examples/model_parallel.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

NUM_DEVICES, LOGICAL_DEVICES = 8, 4
WORDS, WIDTH, HEADS, HIDDEN, LAYERS = 32, 32, 4, 128, 2
LENGTH, BATCH = 16, 8

# The first pattern that is found in a variable's name says into how many pieces each dim is cut.
RULES = [
    (r"attention/(query|key|value)$", [1, LOGICAL_DEVICES, 1]),
    (r"attention/out$", [LOGICAL_DEVICES, 1, 1]),
    (r"mlp/in$", [1, LOGICAL_DEVICES]),
    (r"mlp/bias$", [LOGICAL_DEVICES]),
    (r"mlp/out$", [LOGICAL_DEVICES, 1]),
    (r"^embedding$", [LOGICAL_DEVICES, 1]),
]


def create_variables():
    """The variables of the model, in a tree; create them in a strategy's scope."""
    rng = np.random.default_rng(0)

    def random(name, *shape, fan_in):
        return rx.Variable(rng.normal(0, fan_in**-0.5, shape).astype(np.float32), name=name)

    def norm(name):
        scale = rx.Variable(np.ones(WIDTH, np.float32), name=f"{name}/scale")
        offset = rx.Variable(np.zeros(WIDTH, np.float32), name=f"{name}/offset")
        return {"scale": scale, "offset": offset}

    def block(name):
        head = WIDTH // HEADS
        projections = {
            part: random(f"{name}/attention/{part}", WIDTH, HEADS, head, fan_in=WIDTH)
            for part in ("query", "key", "value")
        }
        return {
            **projections,
            "out": random(f"{name}/attention/out", HEADS, head, WIDTH, fan_in=WIDTH),
            "mlp_in": random(f"{name}/mlp/in", WIDTH, HIDDEN, fan_in=WIDTH),
            "mlp_bias": rx.Variable(np.zeros(HIDDEN, np.float32), name=f"{name}/mlp/bias"),
            "mlp_out": random(f"{name}/mlp/out", HIDDEN, WIDTH, fan_in=HIDDEN),
            "before_attention": norm(f"{name}/norm_0"),
            "before_mlp": norm(f"{name}/norm_1"),
        }

    return {
        "embedding": random("embedding", WORDS, WIDTH, fan_in=WIDTH),
        "positions": random("positions", LENGTH, WIDTH, fan_in=WIDTH),
        "blocks": [block(f"block_{i}") for i in range(LAYERS)],
        "last": norm("last_norm"),
    }


def normalised(x, norm):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * norm["scale"] + norm["offset"]


def attended(x, block):
    query, key, value = (
        jnp.einsum("bld,dhk->bhlk", x, block[part].value) for part in ("query", "key", "value")
    )
    scores = jnp.einsum("bhqk,bhsk->bhqs", query, key) / np.sqrt(WIDTH // HEADS)
    causal = np.tril(np.ones((LENGTH, LENGTH), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    return jnp.einsum("bhqs,bhsk,hkd->bqd", weights, value, block["out"].value)


def logits_of(model, tokens):
    """The scores of all words as the next one, at every position."""
    words = jax.nn.one_hot(tokens, WORDS)
    x = words @ model["embedding"] + model["positions"]
    for block in model["blocks"]:
        x = x + attended(normalised(x, block["before_attention"]), block)
        hidden = normalised(x, block["before_mlp"]) @ block["mlp_in"] + block["mlp_bias"]
        x = x + jax.nn.gelu(hidden) @ block["mlp_out"]
    return normalised(x, model["last"]) @ model["embedding"].value.T


class Training:
    """The model with its optimizer, on any strategy."""

    def __init__(self, strategy):
        self.strategy = strategy
        with strategy.scope():
            self.model = create_variables()
            self.optimizer = rx.Optimizer(optax.adam(3e-3))

        @rx.function
        def step(tokens, following):
            def loss_fn():
                logits = logits_of(self.model, tokens)
                losses = optax.softmax_cross_entropy_with_integer_labels(logits, following)
                return rx.compute_average_loss(losses.mean(axis=1), global_batch_size=BATCH)

            loss, gradients = rx.value_and_grad(loss_fn, self.model)
            self.optimizer.apply_gradients([(gradients, self.model)])
            return loss

        self.step = step

    def batch(self, number):
        """Sequences that go on by a step of their own, and what follows each word of them."""
        rng = np.random.default_rng(number)
        start, stride = rng.integers(0, WORDS, (BATCH, 1)), rng.integers(1, 4, (BATCH, 1))
        words = (start + stride * np.arange(LENGTH + 1)) % WORDS
        return self.strategy.distribute_batch((words[:, :-1], words[:, 1:]))

    def run(self, steps):
        """Trains; gives the loss of every step."""
        losses = [self.strategy.run(self.step, args=self.batch(i)) for i in range(steps)]
        return [float(self.strategy.reduce("SUM", loss, axis=None)) for loss in losses]

    def values(self):
        """All parameters, by name."""
        return {v.name: v.numpy() for v in jax.tree.leaves(self.model, is_leaf=is_variable)}


def is_variable(value):
    return isinstance(value, rx.Variable)


def main():
    rx.set_virtual_devices(NUM_DEVICES)
    strategy = rx.MirroredStrategy(logical_devices=LOGICAL_DEVICES, partition_rules=RULES)
    many, one = Training(strategy), Training(rx.OneDeviceStrategy("CPU:0"))
    print(strategy.describe())
    losses, expected = many.run(50), one.run(50)
    print(rx.visualize_value(many.model["embedding"]))
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}; on one device -> {expected[-1]:.4f}")
    others = one.values()
    apart = max(np.abs(value - others[name]).max() for name, value in many.values().items())
    print(f"{NUM_DEVICES} devices and one: parameters differ by at most {apart:.1e}")


if __name__ == "__main__":
    main()
