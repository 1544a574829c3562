"""Flax NNX under a strategy: modules, optimizers, metrics and random numbers.

Importing this package connects NNX with Replicax; entering a strategy's scope imports it if Flax
has been imported. What is created in the scope is then distributed. Needs Flax 0.12.6 or newer.

>>> from flax import nnx
>>> import jax.numpy as jnp
>>> import optax
>>> import replicax as rx
>>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
>>> with strategy.scope():
...     model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
...     optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
>>> @rx.function
... def step(x):
...     grads = nnx.grad(lambda model: jnp.sum(model(x)))(model)
...     optimizer.update(model, grads)
>>> strategy.run(step, args=(strategy.distribute_batch(jnp.ones((3, 2))),))
>>> model.bias[...]
Array([-0.3], dtype=float32)

What is changed in Flax is in the table in `hooks`.
"""

from replicax.integrations.flax.hooks import install as _install
from replicax.integrations.flax.modules import distribute

__all__ = ["distribute"]

_install()
