"""A step to look at: a small network with Adam, under any strategy."""

import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

WIDTH = 160  # so that some variables are packed with others, and some are not


def training_step(strategy, batch_per_replica=16, *, width=WIDTH):
    """A compiled step, and a batch for it."""
    with strategy.scope():
        params = rx.variables_from(
            [{"w": np.ones((width, width), np.float32), "b": np.ones(width, np.float32)}] * 2
        )
        optimizer = rx.Optimizer(optax.adam(1e-3))
    optimizer.build(params)

    @rx.function
    def step(x):
        def loss():
            y = x
            for layer in params:
                y = jnp.tanh(y @ layer["w"] + layer["b"])
            return rx.compute_average_loss((y * y).sum(1))

        value, gradients = rx.value_and_grad(loss, params)
        optimizer.apply_gradients([(gradients, params)])
        return value

    size = batch_per_replica * strategy.num_replicas_in_sync
    return step, strategy.distribute_batch(np.ones((size, width), np.float32))
