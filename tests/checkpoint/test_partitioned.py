"""A checkpoint has one array of a variable, however its copies are cut into pieces."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

import replicax as rx
from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.reader import list_variables, load_checkpoint

ON_READ = rx.VariableSynchronization.ON_READ
SUM = rx.VariableAggregation.SUM


def logical(number, layout):
    return lambda: rx.MirroredStrategy(
        logical_devices=number, partition_rules=[("w|half|own", layout)]
    )


TARGETS = {
    "default": rx.get_strategy,
    "two whole replicas": lambda: rx.MirroredStrategy(["CPU:0", "CPU:1"]),
    "whole on logical devices": lambda: rx.MirroredStrategy(logical_devices=4),
    "one device": lambda: rx.experimental.CentralStorageStrategy(["CPU:1", "CPU:2"], "CPU:0"),
    "columns of 4": logical(4, [1, 4]),
    "rows of 4": logical(4, [4, 1]),
    "both of 4": logical(4, [2, 2]),
    "half of 4": logical(4, PartitionSpec("logical_1")),
    "columns of 8": logical(8, [1, 8]),
    "rows of 2": logical(2, [2, 1]),
}
SOURCES = ["columns of 4", "both of 4", "columns of 8"]


class Model:
    """Variables in pieces and whole ones, an optimizer with slots, and copies of their own."""

    def __init__(self, strategy, accumulate_steps=1):
        self.strategy = strategy
        with strategy.scope():
            self.w = rx.Variable(np.zeros((8, 8), np.float32), name="w")
            self.half = rx.Variable(jnp.zeros((8, 8), jnp.bfloat16), name="half")
            self.own = rx.Variable(
                np.zeros((8, 8), np.float32), name="own", synchronization=ON_READ, aggregation=SUM
            )
            self.optimizer = rx.Optimizer(optax.adam(0.1), accumulate_steps=accumulate_steps)
            self.optimizer.build([self.w])
        self.checkpoint = Checkpoint(
            w=self.w, half=self.half, own=self.own, optimizer=self.optimizer
        )

        @rx.function
        def step(x):
            self.own.assign_add(jnp.ones((8, 8)) * x.sum())
            gradient = rx.grad(lambda: jnp.sum((x @ self.w - 1.0) ** 2), self.w)
            self.optimizer.apply_gradients([(gradient, self.w)])

        self._step = step

    def train(self, count=3):
        batch = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
        for _ in range(count):
            self.strategy.run(self._step, args=(self.strategy.distribute_batch(batch),))
        return self

    def fill(self):
        self.half.assign(jnp.asarray(np.arange(64).reshape(8, 8), jnp.bfloat16))
        return self.train()

    def state(self):
        found = [self.w, self.half, self.own, *self.optimizer.variables]
        return {v.name: np.asarray(v.numpy(), np.float32) for v in found}


def layouts(model):
    found = [model.w, model.half, model.own, *model.optimizer.slots_of(model.w).values()]
    return [v._storage.live_array().sharding for v in found]


def require_equal(found, expected, **tolerance):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, err_msg=name, **tolerance)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_pieces_are_restored_into_every_other_layout_and_back(source, target, tmp_path):
    saved = Model(TARGETS[source]()).fill()
    path = saved.checkpoint.write(tmp_path / "saved")
    other = Model(TARGETS[target]())
    expected_layouts = layouts(other)
    other.checkpoint.read(path).assert_consumed()
    require_equal(other.state(), saved.state(), rtol=1e-6)
    assert layouts(other) == expected_layouts
    back = Model(TARGETS[source]())
    expected_layouts = layouts(back)
    back.checkpoint.read(other.checkpoint.write(tmp_path / "again"))
    require_equal(back.state(), saved.state(), rtol=1e-6)
    assert layouts(back) == expected_layouts
    require_equal(back.train().state(), saved.train().state(), rtol=1e-5, atol=1e-5)


def test_a_checkpoint_shows_one_array_of_the_whole_shape(tmp_path):
    model = Model(TARGETS["columns of 4"]()).fill()
    path = model.checkpoint.write(tmp_path / "saved")
    shapes = dict(list_variables(path))
    assert tuple(shapes["w"]) == (8, 8)
    np.testing.assert_array_equal(load_checkpoint(path).get_tensor("w"), model.w.numpy())


def test_a_save_in_the_background_has_the_values_of_its_moment(tmp_path):
    model = Model(TARGETS["both of 4"]()).fill()
    expected = model.state()
    path = model.checkpoint.save_async(tmp_path / "saved")
    model.train(2)
    model.checkpoint.sync()
    model.checkpoint.restore(path)
    require_equal(model.state(), expected, rtol=1e-6)


def test_gradients_that_are_being_added_up_are_saved_in_pieces(tmp_path):
    saved = Model(TARGETS["rows of 2"](), accumulate_steps=4).train(3)
    path = saved.checkpoint.write(tmp_path / "saved")
    other = Model(TARGETS["rows of 2"](), accumulate_steps=4)
    other.checkpoint.read(path)
    require_equal(other.train(2).state(), saved.train(2).state(), rtol=1e-5, atol=1e-6)


def test_values_wait_for_a_variable_in_pieces(tmp_path):
    strategy = TARGETS["columns of 4"]()
    with strategy.scope():
        w = rx.Variable(np.arange(64, dtype=np.float32).reshape(8, 8), name="w")
    path = Checkpoint(model={"w": w}).write(tmp_path / "saved")
    model = {}
    later = Checkpoint(model=model)
    later.read(path)
    with strategy.scope():
        model["w"] = rx.Variable(np.zeros((8, 8), np.float32), name="w")
    np.testing.assert_array_equal(model["w"].numpy(), w.numpy())
    assert model["w"].partition_dimensions == (1, 4)
