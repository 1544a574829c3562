"""Small Equinox models, trained by Replicax and by Equinox alone."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx
from tests.integrations.problem import loss_of, numbers_of, train_by_shares, train_on

ON_READ = rx.VariableSynchronization.ON_READ


class MLP(eqx.nn.MLP):
    def __init__(self, key, rate):
        super().__init__(6, 3, 16, 1, activation=jnp.tanh, key=key)

    def __call__(self, x, state, key):
        return super().__call__(x), state


class ConvNet(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    last: eqx.nn.Linear

    def __init__(self, key, rate):
        keys = jax.random.split(key)
        self.conv = eqx.nn.Conv2d(1, 4, 3, padding=1, key=keys[0])
        self.norm = eqx.nn.BatchNorm(4, "batch", momentum=0.9, mode="batch")
        self.last = eqx.nn.Linear(4, 3, key=keys[1])

    def __call__(self, x, state, key):
        x, state = self.norm(self.conv(jnp.moveaxis(x, -1, 0)), state)
        return self.last(jnp.tanh(x).mean((1, 2))), state


class Block(eqx.Module):
    norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    dense: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self, width, rate, key):
        keys = jax.random.split(key)
        self.norm = eqx.nn.LayerNorm(width)
        self.attention = eqx.nn.MultiheadAttention(2, width, dropout_p=rate, key=keys[0])
        self.dense = eqx.nn.Linear(width, width, key=keys[1])
        self.dropout = eqx.nn.Dropout(rate)

    def __call__(self, x, key):
        keys = jax.random.split(key)
        mask = jnp.tril(jnp.ones((len(x), len(x)), bool))
        y = jax.vmap(self.norm)(x)
        x = x + self.attention(y, y, y, mask=mask, key=keys[0])
        return x + self.dropout(jax.nn.gelu(jax.vmap(self.dense)(x)), key=keys[1])


class GPT(eqx.Module):
    embed: eqx.nn.Embedding
    blocks: list[Block]
    last: eqx.nn.Linear

    def __init__(self, key, rate):
        keys = jax.random.split(key, 4)
        self.embed = eqx.nn.Embedding(8, 8, key=keys[0])
        self.blocks = [Block(8, rate, key) for key in keys[1:3]]
        self.last = eqx.nn.Linear(8, 3, key=keys[3])

    def __call__(self, x, state, key):
        x = jax.vmap(self.embed)(x)
        for block, part in zip(self.blocks, jax.random.split(key, 2), strict=True):
            x = block(x, part)
        return self.last(x[-1]), state


MODELS = {"mlp": MLP, "convnet": ConvNet, "gpt": GPT}


def make(name, rate=0.0):
    return eqx.nn.make_with_state(MODELS[name])(jax.random.key(0), rate)


def forward(model, state, x, key):
    keys = jax.random.split(key, len(x))
    call = jax.vmap(model, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))
    return call(x, state, keys)


def train(strategy, name, make_optimizer, steps, *, wrap):
    """Parameters and statistics after `steps` steps under a strategy, and the losses."""
    model, state = make(name)
    with strategy.scope():
        model = rx.variables_from(model)
        state = rx.variables_from(state, rules={"": ON_READ})
        optimizer = rx.Optimizer(make_optimizer())

    def make_step(rows):
        def step(x, y):
            def loss_fn():
                logits, new = forward(model, state, x, jax.random.key(0))
                return loss_of(logits, y, rows), new

            (loss, new), grads = rx.value_and_grad(loss_fn, model, has_aux=True)
            rx.assign(state, new)
            optimizer.apply_gradients([(grads, model)])
            return loss

        return step

    losses = train_on(strategy, make_step, name, steps, wrap=wrap)
    return numbers_of(rx.values_of(model), rx.values_of(state)), losses


def train_alone(name, make_optimizer, steps, shares):
    """The same by Equinox on one device."""
    model, state = make(name)
    transformation = make_optimizer()
    slots = transformation.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def grad(model, state, x, y, rows):
        def loss_fn(model):
            logits, new = forward(model, state, x, jax.random.key(0))
            return loss_of(logits, y, rows), new

        (loss, new), grads = eqx.filter_value_and_grad(loss_fn, has_aux=True)(model)
        return loss, new, grads

    def apply(model, grads):
        nonlocal slots
        updates, slots = transformation.update(grads, slots, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates)

    model, state, losses = train_by_shares(grad, apply, model, state, name, steps, shares)
    return numbers_of(model, state), losses


def dropout(strategy):
    """A step that gives a mask of dropout, and what says where its random numbers are."""
    layer = eqx.nn.Dropout(0.5)
    with strategy.scope():
        generator = rx.random.Generator(0)
    step = lambda: layer(np.ones(64, np.float32), key=generator.next_replica_key())  # noqa: E731
    return step, generator


def train_with_dropout(strategy, seed):
    """A GPT with dropout: a step, and all of its state."""
    model, state = make("gpt", 0.3)
    with strategy.scope():
        model = rx.variables_from(model)
        optimizer = rx.Optimizer(optax.adamw(0.01))
        generator = rx.random.Generator(seed)

    def step(x, y):
        key = generator.next_replica_key()
        loss_fn = lambda: loss_of(forward(model, state, x, key)[0], y, 24)  # noqa: E731
        loss, grads = rx.value_and_grad(loss_fn, model)
        optimizer.apply_gradients([(grads, model)])
        return loss

    return step, {"model": model, "optimizer": optimizer, "generator": generator}
