"""Checkpoints of split variables and slots: one array of the true shape, for any layout."""

import jax
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.reader import list_variables
from tests.contracts.strategies import mirrored
from tests.optimizers.problem import Training

EVEN = {"num_examples": 16}


def training(num_replicas, stage):
    sharding = rx.experimental.Sharding(stage=stage) if stage else None
    return Training(mirrored(num_replicas, sharding=sharding), optax.adam(0.01))


def saved_by(one, folder):
    return Checkpoint(params=one.params, optimizer=one.optimizer).write(folder / "saved")


MOVES = [((4, 3), (2, 3)), ((4, 3), (1, 0)), ((2, 0), (4, 3)), ((4, 1), (3, 3)), ((3, 2), (4, 0))]


@pytest.mark.parametrize(("source", "target"), MOVES)
def test_training_goes_on_in_another_layout(source, target, tmp_path):
    one = training(*source)
    one.run(2, **EVEN)
    path = saved_by(one, tmp_path)
    expected = one.run(2, **EVEN)

    other = training(*target)
    other.optimizer.build(other.params)
    Checkpoint(params=other.params, optimizer=other.optimizer).read(path).assert_consumed()
    continued = other.run(2, **EVEN)
    for actual, value in zip(jax.tree.leaves(continued), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(actual, value, rtol=1e-5, atol=1e-6)


def test_a_checkpoint_has_one_array_of_the_true_shape(tmp_path):
    one = training(8, 3)
    one.optimizer.build(one.params)
    shapes = dict(list_variables(saved_by(one, tmp_path)))
    kernels = {name: shape for name, shape in shapes.items() if "hidden" in name}
    assert [4, 6] in kernels.values() and [6] in kernels.values()
    assert all(shape in ([4, 6], [6]) for shape in kernels.values())


def test_a_saved_value_waits_for_a_split_variable(tmp_path):
    values = np.arange(5, dtype=np.float32)
    path = Checkpoint(w=rx.Variable(values)).write(tmp_path / "saved")
    holder = Checkpoint()
    status = holder.read(path)
    with mirrored(3, sharding=rx.experimental.Sharding()).scope():
        holder.w = rx.Variable(np.zeros(5, np.float32), name="w")
    np.testing.assert_array_equal(holder.w.numpy(), values)
    status.assert_consumed()
