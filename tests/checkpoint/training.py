"""A training run with every kind of state: Adam, a metric, random noise and a dataset.

``Training(strategy)`` is a fresh one; `state` gives everything a checkpoint should bring back.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx
from replicax.checkpoint.checkpoint import Checkpoint
from replicax.data import Dataset

NUM_EXAMPLES, BATCH = 40, 8

_random = np.random.default_rng(0)
X = _random.normal(size=(NUM_EXAMPLES, 4)).astype(np.float32)
Y = np.sin(X.sum(1, keepdims=True)).astype(np.float32)


class Training:
    """Everything that takes part, and one compiled step."""

    def __init__(self, strategy):
        self.strategy = strategy
        with strategy.scope():
            self.model = {
                "w": rx.Variable(np.full((4, 1), 0.1, np.float32), name="w"),
                "b": rx.Variable(np.zeros(1, np.float32), name="b"),
            }
            self.optimizer = rx.Optimizer(optax.adam(0.1))
            self.loss = rx.metrics.Mean("loss")
            self.noise = rx.random.Generator(3)
        examples = Dataset.from_tensor_slices({"x": X, "y": Y})
        batches = examples.shuffle(NUM_EXAMPLES, seed=5).batch(BATCH)
        self.iterator = iter(strategy.experimental_distribute_dataset(batches))
        self.num_traces = 0
        self.checkpoint = Checkpoint(
            model=self.model,
            optimizer=self.optimizer,
            loss=self.loss,
            noise=self.noise,
            iterator=self.iterator,
        )

        def replica_step(batch):
            self.num_traces += 1
            key = self.noise.next_replica_key()
            x = batch["x"] + 0.01 * jax.random.normal(key, batch["x"].shape)

            def loss():
                return jnp.sum((x @ self.model["w"] + self.model["b"] - batch["y"]) ** 2) / BATCH

            value, gradients = rx.value_and_grad(loss, self.model)
            self.optimizer.apply_gradients([(gradients, self.model)])
            self.loss.update_state(value)

        compiled = rx.function(replica_step)
        self.step = lambda: strategy.run(compiled, args=(next(self.iterator),))

    def steps(self, count):
        for _ in range(count):
            self.step()
        return self

    def state(self):
        """Every value, as NumPy arrays by name."""
        slots = {v.name: v.numpy() for v in self.optimizer.variables}
        copies = {
            f"{v.name}/{i}": np.asarray(part)
            for v in self.loss.variables
            for i, part in enumerate(self.strategy.experimental_local_results(v))
        }
        model = {name: variable.numpy() for name, variable in self.model.items()}
        noise = {"noise": self.noise.state.numpy()}
        return model | slots | copies | noise | {"at": str(self.iterator.get_state())}


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)
