"""Models of Keras and Flax NNX in closures train as on one device, one closure at a time."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
from flax import nnx
from keras import layers

import replicax as rx
from tests.tiers import full_only

STEPS, BATCH = 6, 16
X = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


class KerasProblem:
    """A model, its optimizer and a metric, made in the scope that is open."""

    def __init__(self, name):
        keras.utils.set_random_seed(1)
        parts = [layers.Dense(4, activation="tanh"), layers.BatchNormalization(), layers.Dense(1)]
        self._model = keras.Sequential([keras.Input((3,)), *parts])
        self._optimizer = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}[name](0.1)
        self._metric = keras.metrics.Mean()

    def update(self, x, y):
        def loss_fn():
            return keras.ops.mean((self._model(x, training=True) - y) ** 2)

        weights = self._model.trainable_variables
        loss, gradients = rx.value_and_grad(loss_fn, weights)
        self._optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self._metric.update_state(loss)

    def state(self):
        return [*self._model.get_weights(), float(self._metric.result())]


class NnxProblem:
    """A module and its optimizer, made in the scope that is open."""

    def __init__(self, name):
        rngs = nnx.Rngs(0)
        parts = [nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs), jnp.tanh]
        self._model = nnx.Sequential(*parts, nnx.Linear(4, 1, rngs=rngs))
        transformation = {"sgd": optax.sgd, "adam": optax.adam}[name](0.1)
        self._optimizer = nnx.Optimizer(self._model, transformation, wrt=nnx.Param)

    def update(self, x, y):
        _, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(self._model)
        self._optimizer.update(self._model, gradients)

    def state(self):
        return [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(self._model))]


@pytest.mark.parametrize("name", ["sgd", full_only("adam")])
@pytest.mark.parametrize("problem", [KerasProblem, NnxProblem])
def test_a_model_of_a_library_trains_in_closures_as_on_one_device(problem, name):
    tasks = {"ps": ["localhost:2001", "localhost:2002"], "worker": ["localhost:3001"]}
    servers = rx.ParameterServerStrategy(rx.cluster_resolver.SimpleClusterResolver(tasks))
    with servers.scope():
        remote = problem(name)
    coordinator = rx.coordinator.ClusterCoordinator(servers)
    pipeline = rx.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH).repeat()
    batches = iter(coordinator.create_per_worker_dataset(lambda: pipeline))
    step = rx.function(lambda batches: remote.update(*next(batches)))
    for _ in range(STEPS):
        coordinator.schedule(step, args=(batches,))
    coordinator.join()

    device = rx.OneDeviceStrategy("CPU:0")
    with device.scope():
        local = problem(name)
    local_step = rx.function(local.update)
    for _, batch in zip(range(STEPS), pipeline, strict=False):
        device.run(local_step, args=batch)
    for found, expected in zip(remote.state(), local.state(), strict=True):
        # XLA fuses an update that is in the program of the step, and rounds it otherwise.
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
