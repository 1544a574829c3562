"""Small Haiku models, trained by Replicax and by Haiku alone."""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx
from tests.integrations.problem import INPUTS, loss_of, numbers_of, train_by_shares, train_on

ON_READ = rx.VariableSynchronization.ON_READ


def mlp(x, rate):
    return hk.nets.MLP([16, 3], activation=jnp.tanh)(x)


def convnet(x, rate):
    norm = hk.BatchNorm(create_scale=True, create_offset=True, decay_rate=0.9)
    x = norm(hk.Conv2D(4, 3)(x), is_training=True)
    return hk.Linear(3)(jnp.tanh(x).mean((1, 2)))


def layer_norm(x):
    return hk.LayerNorm(-1, create_scale=True, create_offset=True)(x)


def gpt(x, rate):
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))[None, None]
    x = hk.Embed(8, 8)(x)
    for _ in range(2):
        y = layer_norm(x)
        attention = hk.MultiHeadAttention(2, 4, w_init=hk.initializers.VarianceScaling())
        x = x + hk.dropout(hk.next_rng_key(), rate, attention(y, y, y, mask))
        x = x + hk.dropout(hk.next_rng_key(), rate, jax.nn.gelu(hk.Linear(8)(layer_norm(x))))
    return hk.Linear(3)(x[:, -1])


MODELS = {"mlp": mlp, "convnet": convnet, "gpt": gpt}


def make(name, rate=0.0):
    """The model, its parameters and its statistics."""
    model = hk.transform_with_state(lambda x: MODELS[name](x, rate))
    example = INPUTS[name](np.random.RandomState(0), 2)
    return model, *jax.jit(model.init)(jax.random.key(0), example)


def train(strategy, name, make_optimizer, steps, *, wrap):
    """Parameters and statistics after `steps` steps under a strategy, and the losses."""
    model, params, state = make(name)
    with strategy.scope():
        params = rx.variables_from(params)
        state = rx.variables_from(state, rules={"": ON_READ})
        optimizer = rx.Optimizer(make_optimizer())

    def make_step(rows):
        def step(x, y):
            def loss_fn():
                values = rx.values_of((params, state))
                logits, new = model.apply(*values, jax.random.key(0), x)
                return loss_of(logits, y, rows), new

            (loss, new), grads = rx.value_and_grad(loss_fn, params, has_aux=True)
            rx.assign(state, new)
            optimizer.apply_gradients([(grads, params)])
            return loss

        return step

    losses = train_on(strategy, make_step, name, steps, wrap=wrap)
    return numbers_of(*rx.values_of((params, state))), losses


def train_alone(name, make_optimizer, steps, shares):
    """The same by Haiku on one device."""
    model, params, state = make(name)
    transformation = make_optimizer()
    slots = transformation.init(params)

    @jax.jit
    def grad(params, state, x, y, rows):
        def loss_fn(params):
            logits, new = model.apply(params, state, jax.random.key(0), x)
            return loss_of(logits, y, rows), new

        (loss, new), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        return loss, new, grads

    def apply(params, grads):
        nonlocal slots
        updates, slots = transformation.update(grads, slots, params)
        return optax.apply_updates(params, updates)

    params, state, losses = train_by_shares(grad, apply, params, state, name, steps, shares)
    return numbers_of(params, state), losses


def dropout(strategy):
    """A step that gives a mask of dropout, and what says where its random numbers are."""
    layer = hk.transform(lambda x: hk.dropout(hk.next_rng_key(), 0.5, x))
    with strategy.scope():
        generator = rx.random.Generator(0)
    ones = np.ones(64, np.float32)
    return lambda: layer.apply({}, generator.next_replica_key(), ones), generator


def train_with_dropout(strategy, seed):
    """A GPT with dropout: a step, and all of its state."""
    model, params, state = make("gpt", 0.3)
    with strategy.scope():
        params = rx.variables_from(params)
        optimizer = rx.Optimizer(optax.adamw(0.01))
        generator = rx.random.Generator(seed)

    def step(x, y):
        key = generator.next_replica_key()
        loss_fn = lambda: loss_of(  # noqa: E731
            model.apply(rx.values_of(params), state, key, x)[0], y, 24
        )
        loss, grads = rx.value_and_grad(loss_fn, params)
        optimizer.apply_gradients([(grads, params)])
        return loss

    return step, {"params": params, "optimizer": optimizer, "generator": generator}
