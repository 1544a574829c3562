"""Small Linen models, trained by Replicax and by Linen alone."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import train_state

import replicax as rx
from tests.integrations.problem import INPUTS, loss_of, numbers_of, train_by_shares, train_on

ON_READ = rx.VariableSynchronization.ON_READ


class MLP(nn.Module):
    rate: float = 0.0

    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(3)(jnp.tanh(nn.Dense(16)(x)))


class ConvNet(nn.Module):
    rate: float = 0.0

    @nn.compact
    def __call__(self, x, train):
        x = nn.BatchNorm(momentum=0.9, use_running_average=not train)(nn.Conv(4, (3, 3))(x))
        return nn.Dense(3)(jnp.tanh(x).mean((1, 2)))


class GPT(nn.Module):
    rate: float = 0.0

    @nn.compact
    def __call__(self, x, train):
        mask = nn.make_causal_mask(x)
        x = nn.Embed(8, 8)(x)
        for _ in range(2):
            attention = nn.MultiHeadDotProductAttention(
                2, dropout_rate=self.rate, deterministic=not train
            )
            x = x + attention(nn.LayerNorm()(x), mask=mask)
            x = x + nn.Dropout(self.rate, deterministic=not train)(nn.gelu(nn.Dense(8)(x)))
        return nn.Dense(3)(x[:, -1])


MODELS = {"mlp": MLP, "convnet": ConvNet, "gpt": GPT}


class TrainState(train_state.TrainState):
    batch_stats: dict


def make(name, transformation, rate=0.0):
    model = MODELS[name](rate)
    example = INPUTS[name](np.random.RandomState(0), 2)
    variables = jax.jit(lambda: model.init(jax.random.key(0), example, train=False))()
    return TrainState.create(
        apply_fn=model.apply,
        params=variables["params"],
        tx=transformation,
        batch_stats=variables.get("batch_stats", {}),
    )


def forward(state, params, batch_stats, x, key):
    return state.apply_fn(
        {"params": params, "batch_stats": batch_stats},
        x,
        train=True,
        mutable=["batch_stats"],
        rngs={"dropout": key},
    )


def gradients(state, params, batch_stats, x, y, rows, key):
    def loss_fn(params):
        logits, new = forward(state, params, batch_stats, x, key)
        return loss_of(logits, y, rows), new.get("batch_stats", {})

    (loss, new), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    return loss, new, grads


def train(strategy, name, make_optimizer, steps, *, wrap):
    """Parameters and statistics after `steps` steps under a strategy, and the losses."""
    with strategy.scope():
        state = rx.variables_from(make(name, make_optimizer()), rules={"batch_stats": ON_READ})

    def make_step(rows):
        @rx.carry
        def carried(state, x, y):
            loss, new, grads = gradients(
                state, state.params, state.batch_stats, x, y, rows, jax.random.key(0)
            )
            grads = rx.get_replica_context().all_reduce("SUM", grads)
            return state.apply_gradients(grads=grads, batch_stats=new), loss

        return lambda x, y: carried(state, x, y)[1]

    losses = train_on(strategy, make_step, name, steps, wrap=wrap)
    values = rx.values_of(state)
    return numbers_of(values.params, values.batch_stats), losses


def train_alone(name, make_optimizer, steps, shares):
    """The same by Linen on one device."""
    state = make(name, make_optimizer())
    grad = jax.jit(
        lambda state, stats, x, y, rows: gradients(
            state, state.params, stats, x, y, rows, jax.random.key(0)
        )
    )
    state, statistics, losses = train_by_shares(
        grad,
        lambda state, grads: state.apply_gradients(grads=grads),
        state,
        state.batch_stats,
        name,
        steps,
        shares,
    )
    return numbers_of(state.params, statistics), losses


def dropout(strategy):
    """A step that gives a mask of dropout, and what says where its random numbers are."""
    layer = nn.Dropout(0.5, deterministic=False)
    with strategy.scope():
        generator = rx.random.Generator(0)
    ones = np.ones(64, np.float32)
    step = lambda: layer.apply({}, ones, rngs={"dropout": generator.next_replica_key()})  # noqa: E731
    return step, generator


def train_with_dropout(strategy, seed):
    """A GPT with dropout: a step, and all of its state."""
    with strategy.scope():
        state = rx.variables_from(make("gpt", optax.adamw(0.01), 0.3))
        generator = rx.random.Generator(seed)

    @rx.carry
    def carried(state, x, y, key):
        loss, _, grads = gradients(state, state.params, {}, x, y, 24, key)
        grads = rx.get_replica_context().all_reduce("SUM", grads)
        return state.apply_gradients(grads=grads), loss

    def step(x, y):
        return carried(state, x, y, generator.next_replica_key())[1]

    return step, {"state": state, "generator": generator}
