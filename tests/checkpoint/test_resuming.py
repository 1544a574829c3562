"""A run that was saved and goes on elsewhere is the run that was never interrupted."""

import numpy as np
import optax
import pytest

import replicax as rx
from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.options import CheckpointOptions
from tests.checkpoint.training import Training, assert_same_bits
from tests.contracts.strategies import STRATEGIES
from tests.engine.functions.test_traces import compilations


@pytest.mark.parametrize("name", STRATEGIES)
def test_training_resumes_in_mid_epoch_with_the_same_bits(name, tmp_path):
    uninterrupted = Training(STRATEGIES[name]()).steps(3)
    path = uninterrupted.checkpoint.save(tmp_path / "ckpt")
    uninterrupted.steps(2)

    resumed = Training(STRATEGIES[name]())
    status = resumed.checkpoint.restore(path)
    resumed.steps(2)

    status.assert_consumed()
    assert_same_bits(resumed.state(), uninterrupted.state())


def test_a_program_that_was_compiled_before_restore_is_not_compiled_again(few, tmp_path):
    training = Training(few).steps(3)
    path = training.checkpoint.save(tmp_path / "ckpt")
    training.steps(1)
    after_four = training.state()
    num_traces = training.num_traces

    training.checkpoint.restore(path).assert_consumed()
    with compilations() as count:
        training.steps(1)

    assert training.num_traces == num_traces
    assert not count
    assert_same_bits(training.state(), after_four)


def test_a_value_handed_out_before_restore_stays_valid(few, tmp_path):
    training = Training(few).steps(1)
    path = training.checkpoint.save(tmp_path / "ckpt")
    training.steps(1)
    seen = training.model["w"].value
    expected = np.array(seen)

    training.checkpoint.restore(path)
    training.steps(2)

    np.testing.assert_array_equal(seen, expected)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_save_has_the_values_of_the_moment_of_the_call(few, is_async, tmp_path):
    training = Training(few).steps(2)
    now = Training(few).steps(2).state()
    options = CheckpointOptions(enable_async=is_async)
    path = training.checkpoint.save(tmp_path / "ckpt", options)
    training.steps(3)
    training.checkpoint.sync()

    training.checkpoint.restore(path)

    assert_same_bits(training.state(), now)


def test_accumulated_gradients_resume_with_the_same_bits(two, tmp_path):
    def make():
        with two.scope():
            w = rx.Variable(np.float32([0.1, 0.7, 0.3]), name="w")
            optimizer = rx.Optimizer(optax.adam(0.1), accumulate_steps=3)

        @rx.function
        def step(x):
            gradient = rx.grad(lambda: (x * w * w).sum(), w)
            optimizer.apply_gradients([(gradient, w)])

        def run(start, stop):
            for i in range(start, stop):
                batch = two.distribute_batch(np.float32([[i, 0.1, 3], [0.7, i, 1]]))
                two.run(step, args=(batch,))

        return w, optimizer, run, Checkpoint(w=w, optimizer=optimizer)

    w, optimizer, run, checkpoint = make()
    run(0, 5)
    path = checkpoint.save(tmp_path / "ckpt")
    run(5, 7)
    again, _, run_again, checkpoint_again = make()
    status = checkpoint_again.restore(path)
    run_again(5, 7)

    status.assert_consumed()
    np.testing.assert_array_equal(again.numpy(), w.numpy())
    assert int(optimizer.iterations) == 2
