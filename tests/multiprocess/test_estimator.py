"""An Estimator that is killed, and one of several workers, with real processes."""

import signal

import numpy as np
import pytest

from tests.estimator.models import estimator, eval_input, trained_and_evaluated
from tests.multiprocess import estimator_programs
from tests.multiprocess.checkpoint_programs import start
from tests.tiers import full_only

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def train(folder, name, num_replicas, kill_after=0):
    """Starts one process that trains on so many devices."""
    arguments = (name, str(num_replicas), str(kill_after))
    return start(
        "train", folder, *arguments,
        num_workers=1, num_devices=num_replicas, file=estimator_programs.__file__,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("num_replicas", "kills", "resumed_from"),
    [
        (2, [12], "ckpt-10"),
        full_only(1, [3], None),  # before the first checkpoint
        full_only(2, [10], "ckpt-5"),  # after a step, before its checkpoint
        full_only(8, [3, 6, 4], "ckpt-5"),
    ],
)
def test_a_killed_training_goes_on_with_the_bits_of_one_that_was_not(
    num_replicas, kills, resumed_from, tmp_path
):
    with train(tmp_path, "whole", num_replicas) as process:
        (whole,) = process.results()
    for steps in kills:
        with train(tmp_path, "killed", num_replicas, steps) as process:
            assert process.wait() == [-signal.SIGKILL], process.output()
    with train(tmp_path, "killed", num_replicas) as process:
        (resumed,) = process.results()
    assert whole["start"] is None
    assert resumed["start"] == resumed_from
    assert len(resumed["bits"]) == 12
    assert resumed["bits"] == whole["bits"]


@pytest.mark.slow
def test_two_workers_train_evaluate_and_predict_as_one_device(tmp_path):
    program = estimator_programs.__file__
    with start("train_and_evaluate", tmp_path, num_workers=2, num_devices=2, file=program) as both:
        results = both.results()
    alone = estimator(tmp_path / "alone", save_checkpoints_steps=4)
    metrics = trained_and_evaluated(alone, 12)
    logits = [each["logits"] for each in alone.predict(eval_input)]
    assert results[0]["metrics"] == results[1]["metrics"]
    for found in results:
        assert found["replicas"] == 4
        assert set(found["metrics"]) == set(metrics)
        for name, value in metrics.items():
            np.testing.assert_allclose(found["metrics"][name], value, rtol=0, atol=1e-5)
        np.testing.assert_allclose(found["logits"], logits, atol=1e-5)
        np.testing.assert_allclose(found["w"], alone.get_variable_value("w"), atol=1e-5)
        assert "save_checkpoints_secs=1 with many workers" in found["error"]
